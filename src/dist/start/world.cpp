#include "dist/start/world.h"

#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <initializer_list>
#include <string_view>

namespace flashlab::dist {
namespace {

// What one kind of starter calls things.
struct Starter {
  const char* name;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
  /// Any of these is the mark of this starter: a rank's variables may be left from elsewhere.
  std::initializer_list<const char*> marks;
  /// What tells its runs apart.
  std::initializer_list<const char*> job;
};

// Inner ones first: torchrun runs inside srun, mpirun starts its helpers by srun.
const Starter kStarters[] = {
    {"torchrun",
     "RANK",
     "WORLD_SIZE",
     "LOCAL_RANK",
     "LOCAL_WORLD_SIZE",
     {"FLASHLAB_JOB", "TORCHELASTIC_RUN_ID"},
     {"FLASHLAB_JOB", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID",
      "TORCHELASTIC_RESTART_COUNT"}},
    {"mpirun (OpenMPI)",
     "OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE",
     {"OMPI_COMM_WORLD_RANK"},
     {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}},
    {"mpirun (Hydra)",
     "PMI_RANK",
     "PMI_SIZE",
     "MPI_LOCALRANKID",
     "MPI_LOCALNRANKS",
     {"MPI_LOCALRANKID"},
     {}},
    // A batch script has these, too, but only what srun started has a step.
    {"srun",
     "SLURM_PROCID",
     "SLURM_NTASKS",
     "SLURM_LOCALID",
     nullptr,
     {"SLURM_STEP_ID"},
     {"SLURM_JOB_ID", "SLURM_STEP_ID"}},
};

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "this host";
}

bool is_marked(const Starter& starter, const Variables& variables) {
  for (const char* mark : starter.marks) {
    if (variables(mark)) return true;
  }
  return false;
}

std::string remedy_of(const Starter& starter) {
  return fmt::format(
      "unset {}, {} and {}, or start all ranks by flashlab launch, torchrun, mpirun or srun",
      starter.rank, starter.size, starter.local_rank);
}

Result<int> number(const Starter& starter, const char* name, const Variables& variables, int low,
                   int high) {
  const std::optional<std::string> text = variables(name);
  const std::string expected = fmt::format("a whole number from {} to {}", low, high);
  if (!text) {
    return Status::invalid(
        {name, "nothing, where other variables of a run are set", expected, remedy_of(starter)});
  }
  int value = 0;
  const char* end = text->data() + text->size();
  const auto [stop, error] = std::from_chars(text->data(), end, value);
  if (text->empty() || stop != end || error != std::errc() || value < low || value > high) {
    return Status::invalid({name, fmt::format("\"{}\"", *text), expected, remedy_of(starter)});
  }
  return value;
}

// "2(x3),1": tasks of each node of a Slurm step. Those of the first node; ranks of several nodes
// are refused wherever it matters which one it is.
int first_of_tasks(const std::optional<std::string>& text, int otherwise) {
  int value = 0;
  if (text) std::from_chars(text->data(), text->data() + text->size(), value);
  return value > 0 ? value : otherwise;
}

constexpr int kMostRanks = 1 << 20;

// Empty: this starter did not start the process.
Result<std::optional<World>> read(const Starter& starter, const Variables& variables) {
  const bool slurm = starter.local_size == nullptr;
  if (slurm && !is_marked(starter, variables)) return std::optional<World>();
  if (!variables(starter.rank) && !variables(starter.size)) return std::optional<World>();
  World out;
  out.starter =
      variables("FLASHLAB_JOB") && &starter == kStarters ? "flashlab launch" : starter.name;
  const Result<int> size = number(starter, starter.size, variables, 1, kMostRanks);
  if (!size.ok()) return size.status();
  out.size = *size;
  const Result<int> rank = number(starter, starter.rank, variables, 0, out.size - 1);
  if (!rank.ok()) return rank.status();
  out.rank = *rank;
  const Result<int> local_size =
      slurm ? first_of_tasks(variables("SLURM_STEP_TASKS_PER_NODE"), out.size)
            : number(starter, starter.local_size, variables, 1, out.size);
  if (!local_size.ok()) return local_size.status();
  out.local_size = *local_size;
  const Result<int> local_rank =
      number(starter, starter.local_rank, variables, 0, out.local_size - 1);
  if (!local_rank.ok()) return local_rank.status();
  out.local_rank = *local_rank;
  if (&starter == kStarters && out.size > 1 && !variables("FLASHLAB_JOB")) {
    const Result<int> port = number(starter, "MASTER_PORT", variables, 1, 65535);
    if (!port.ok()) return port.status();
  }
  for (const char* name : starter.job) {
    if (const auto value = variables(name)) out.job += (out.job.empty() ? "" : "-") + *value;
    if (!out.job.empty() && std::string_view(name) == "FLASHLAB_JOB") break;
  }
  return std::optional<World>(out);
}

Status contradiction(const Starter& a, const World& world_a, const Starter& b,
                     const World& world_b) {
  return Status::invalid(
      {fmt::format("{} and {}", a.rank, b.rank),
       fmt::format("rank {} of {} by {}, rank {} of {} by {}", world_a.rank, world_a.size,
                   world_a.starter, world_b.rank, world_b.size, world_b.starter),
       "one starter that says which rank this is", remedy_of(a)});
}

// A file's name: letters, digits, '-', '_' and '.'.
std::string file_name(std::string text) {
  for (char& c : text) {
    const bool keeps = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                       c == '-' || c == '_' || c == '.';
    if (!keeps) c = '_';
  }
  return text.substr(0, 200);
}

}  // namespace

const Variables& environment() {
  static const Variables kEnvironment = [](const char* name) -> std::optional<std::string> {
    const char* value = std::getenv(name);
    if (value == nullptr) return std::nullopt;
    return std::string(value);
  };
  return kEnvironment;
}

Result<World> world_of(const Variables& variables) {
  World out;
  const Starter* chosen = nullptr;
  for (const Starter& starter : kStarters) {
    const Result<std::optional<World>> world = read(starter, variables);
    if (!world.ok()) return world.status();
    if (!world->has_value()) continue;
    if (chosen == nullptr) {
      out = **world;
      chosen = &starter;
      continue;
    }
    // One starter inside another says something else, rightly; variables that somebody exported
    // and forgot have no mark.
    const bool differ = out.rank != (*world)->rank || out.size != (*world)->size;
    if (differ && !is_marked(*chosen, variables)) {
      return contradiction(*chosen, out, starter, **world);
    }
  }
  out.host = host_name();
  const std::optional<std::string> port = variables("MASTER_PORT");
  out.address = variables("MASTER_ADDR").value_or("");
  if (port) std::from_chars(port->data(), port->data() + port->size(), out.port);
  // Ranks of one host have one parent where their starter has no name for the run.
  if (out.job.empty()) out.job = fmt::format("parent-{}", ::getppid());
  out.job = file_name(fmt::format("{}-{}", ::getuid(), out.job));
  return out;
}

void turn_multicast_off() {
  for (const Setting& setting : kMulticastOff) ::setenv(setting.name, setting.value, 1);
}

}  // namespace flashlab::dist
