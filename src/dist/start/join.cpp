#include "dist/start/join.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>

#include "dist/mpi/mpi_communicator.h"
#include "dist/shared/shared_communicator.h"
#include "dist/sockets/socket_communicator.h"
#include "flashlab/version.h"

namespace flashlab::dist {

Result<std::unique_ptr<runtime::Communicator>> join(const World& world,
                                                    const JoinOptions& options) {
  turn_multicast_off();
  const std::string build = fmt::format("{} ({})", version(), build_commit());
  const std::string group = world.job + "-" + options.group;
  if (world.local_size != world.size) {
    if (world.address.empty() || world.port <= 0) {
      return Status::unsupported(
          {"ranks",
           fmt::format("{} on {} hosts or more, {} of them on {}", world.size,
                       (world.size + world.local_size - 1) / world.local_size, world.local_size,
                       world.host),
           "MASTER_ADDR and MASTER_PORT, where ranks of several hosts meet",
           "set them to rank 0's host and a port, as torchrun does, or start all ranks on one "
           "host"});
    }
    auto between = socket_communicator({.rank = world.rank,
                                        .size = world.size,
                                        .address = world.address,
                                        .port = world.port,
                                        .timeout_s = options.timeout_s,
                                        .group = group,
                                        .host = world.host,
                                        .build = build});
    if (!between.ok() || options.transport != "mpi") return between;
    runtime::Communicator& control = **between;
    return mpi_communicator(control, std::move(*between), options.timeout_s);
  }
  if (world.size > kMaxSharedRanks) {
    return Status::unsupported({"ranks", fmt::format("{}", world.size),
                                fmt::format("at most {}", kMaxSharedRanks), "start fewer"});
  }
  SegmentOptions segment{.rank = world.rank,
                         .size = world.size,
                         .timeout_s = options.timeout_s,
                         .host = world.host,
                         .build = build};
  Result<std::unique_ptr<Segment>> made = [&]() -> Result<std::unique_ptr<Segment>> {
    if (!world.alone()) return Segment::meet(group, segment);
    const Result<int> descriptor = Segment::descriptor_for(segment);
    if (!descriptor.ok()) return descriptor.status();
    Result<std::unique_ptr<Segment>> own = Segment::enter(*descriptor, segment);
    ::close(*descriptor);
    return own;
  }();
  if (!made.ok()) return made.status();
  auto shared = shared_communicator(std::move(made).value(), world.rank, world.size);
  if (options.transport != "mpi") return shared;
  runtime::Communicator& control = *shared;
  return mpi_communicator(control, std::move(shared), options.timeout_s);
}

bool report_to_launcher(int exit_code, bool lost, std::string_view text) {
  const std::optional<std::string> variable = environment()(kReportVariable);
  int descriptor = -1;
  if (variable) {
    std::from_chars(variable->data(), variable->data() + variable->size(), descriptor);
  }
  if (descriptor < 0) return false;
  std::string line = fmt::format("{} {} {}", exit_code, lost ? "lost" : "failed", text);
  std::replace(line.begin(), line.end(), '\n', ' ');
  // A pipe takes so much whole, without waiting.
  constexpr std::size_t kWhole = 4000;
  line = line.substr(0, kWhole) + '\n';
  return ::write(descriptor, line.data(), line.size()) == static_cast<ssize_t>(line.size());
}

}  // namespace flashlab::dist
