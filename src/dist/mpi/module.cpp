// libflashlab_mpi.so: the one file that is compiled against mpi.h, any implementation's.

#include "dist/mpi/module.h"

#include <dlfcn.h>
#include <mpi.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

namespace flashlab::dist {
namespace {

// Counts of MPI are ints.
constexpr std::size_t kLargest = std::size_t{1} << 30;
constexpr int kTag = 41;

MPI_Comm ours = MPI_COMM_NULL;

int mpi_exchange(const MpiMessage* messages, int count, double timeout_s) {
  std::vector<MPI_Request> requests;
  for (int i = 0; i < count; ++i) {
    const MpiMessage& each = messages[i];
    for (std::size_t at = 0; at < each.bytes; at += kLargest) {
      const int bytes = static_cast<int>(std::min(kLargest, each.bytes - at));
      char* memory = static_cast<char*>(each.memory) + at;
      MPI_Request& request = requests.emplace_back(MPI_REQUEST_NULL);
      const int error = each.sends
                            ? MPI_Isend(memory, bytes, MPI_BYTE, each.rank, kTag, ours, &request)
                            : MPI_Irecv(memory, bytes, MPI_BYTE, each.rank, kTag, ours, &request);
      if (error != MPI_SUCCESS) return error;
    }
  }
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(timeout_s);
  for (;;) {
    int all = 0;
    const int error =
        MPI_Testall(static_cast<int>(requests.size()), requests.data(), &all, MPI_STATUSES_IGNORE);
    if (error != MPI_SUCCESS) return error;
    if (all != 0) return 0;
    if (Clock::now() > end) return kMpiLate;
    ::sched_yield();  // ranks may be more than processors
  }
}

void mpi_words(int error, char* to, std::size_t bytes) {
  char text[MPI_MAX_ERROR_STRING + 1] = {};
  int length = 0;
  if (MPI_Error_string(error, text, &length) != MPI_SUCCESS) length = 0;
  const std::size_t size = std::min(static_cast<std::size_t>(length), bytes - 1);
  std::memcpy(to, text, size);
  to[size] = '\0';
}

void mpi_end() {
  MPI_Comm_free(&ours);
  MPI_Finalize();
}

int start(MpiModule& out) {
  // Implementations open plugins that look for MPI's names among the global ones, and a library
  // that came with this module is not there yet.
  Dl_info info{};
  if (::dladdr(reinterpret_cast<void*>(&MPI_Init_thread), &info) != 0) {
    ::dlopen(info.dli_fname, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
  }
  int before = 0;
  if (const int error = MPI_Initialized(&before); error != MPI_SUCCESS) return error;
  if (before != 0) return kMpiOther;
  int given = MPI_THREAD_SINGLE;
  int error = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &given);
  if (error == MPI_SUCCESS) error = MPI_Comm_dup(MPI_COMM_WORLD, &ours);
  // Errors are values here; MPI's own way is to abort.
  if (error == MPI_SUCCESS) error = MPI_Comm_set_errhandler(ours, MPI_ERRORS_RETURN);
  if (error == MPI_SUCCESS) error = MPI_Comm_rank(ours, &out.rank);
  if (error == MPI_SUCCESS) error = MPI_Comm_size(ours, &out.size);
  if (error != MPI_SUCCESS) return error;
  out.threads = given >= MPI_THREAD_MULTIPLE     ? 3
                : given >= MPI_THREAD_SERIALIZED ? 2
                : given >= MPI_THREAD_FUNNELED   ? 1
                                                 : 0;
  static char about[MPI_MAX_LIBRARY_VERSION_STRING + 1] = {};
  int length = 0;
  MPI_Get_library_version(about, &length);
  about[std::strcspn(about, "\n")] = '\0';
  out.library = about;
  out.exchange = mpi_exchange;
  out.words_of = mpi_words;
  out.end = mpi_end;
  return 0;
}

}  // namespace
}  // namespace flashlab::dist

extern "C" __attribute__((visibility("default"))) int flashlab_mpi_open(
    std::uint32_t version, flashlab::dist::MpiModule* out) {
  if (version != flashlab::dist::kMpiModuleVersion) return flashlab::dist::kMpiOther;
  return flashlab::dist::start(*out);
}
