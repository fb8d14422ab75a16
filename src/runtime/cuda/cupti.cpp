#include "runtime/cuda/cupti.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "runtime/library/nvidia_libraries.h"

namespace flashlab::cuda {
namespace {

constexpr CuptiActivityKind kKinds[] = {kCuptiConcurrentKernel, kCuptiMemset, kCuptiMemcpy};

// CUPTI's callbacks have no argument of ours: there is one list of activities in a process.
struct Inbox {
  std::mutex mutex;
  std::vector<Activity> activities;
  const CuptiFunctions* api = nullptr;
};

Inbox& inbox() {
  static Inbox& all = *new Inbox();  // CUPTI's thread may outlive static destructors
  return all;
}

constexpr std::size_t kBufferBytes = std::size_t{4} << 20;
constexpr std::size_t kBufferAlignment = 8;

void buffer_requested(std::uint8_t** buffer, std::size_t* bytes, std::size_t* most_records) {
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(kBufferAlignment, kBufferBytes));
  *bytes = *buffer == nullptr ? 0 : kBufferBytes;
  *most_records = 0;  // as many as fit
}

Activity activity_of(const CuptiKernel& record) {
  Activity out;
  out.name = record.name != nullptr ? record.name : "";
  out.start_ns = record.start;
  out.end_ns = record.end;
  out.blocks = std::int64_t{record.grid_x} * record.grid_y * record.grid_z;
  out.threads = record.block_x * record.block_y * record.block_z;
  out.registers = record.registers_per_thread;
  out.shared_bytes = std::int64_t{record.static_shared_bytes} + record.dynamic_shared_bytes;
  return out;
}

Activity activity_of(Activity::Kind kind, std::uint64_t start, std::uint64_t end) {
  Activity out;
  out.kind = kind;
  out.start_ns = start;
  out.end_ns = end;
  return out;
}

// Records of every version begin as the declared ones, so that only those bytes are read.
template <class Record>
Record read(const CuptiActivity* record) {
  Record out;
  std::memcpy(&out, record, sizeof out);
  return out;
}

void take(const CuptiActivity* record, std::vector<Activity>& out) {
  if (record->kind == kCuptiConcurrentKernel) {
    out.push_back(activity_of(read<CuptiKernel>(record)));
  } else if (record->kind == kCuptiMemset) {
    const auto memset = read<CuptiMemset>(record);
    out.push_back(activity_of(Activity::Kind::kMemset, memset.start, memset.end));
  } else if (record->kind == kCuptiMemcpy) {
    const auto copy = read<CuptiMemcpy>(record);
    out.push_back(activity_of(Activity::Kind::kCopy, copy.start, copy.end));
    out.back().with_host =
        copy.copy_kind == kCuptiHostToDevice || copy.copy_kind == kCuptiDeviceToHost;
  }
}

void buffer_completed(void*, std::uint32_t, std::uint8_t* buffer, std::size_t,
                      std::size_t valid_bytes) {
  Inbox& in = inbox();
  {
    std::lock_guard lock(in.mutex);
    CuptiActivity* record = nullptr;
    while (in.api->cuptiActivityGetNextRecord(buffer, valid_bytes, &record) == kCuptiSuccess) {
      take(record, in.activities);
    }
  }
  std::free(buffer);
}

const char* remedy_of(int result) {
  switch (result) {
    case kCuptiInsufficientPrivileges:
      return "let users read counters: options nvidia NVreg_RestrictProfilingToAdminUsers=0, or "
             "run as root";
    case kCuptiMultipleSubscribers:
      return "another profiler listens: run without ncu, nsys or a debugger";
    default:
      return "times come from event pairs";
  }
}

}  // namespace

Result<Cupti> open_cupti() {
  const NvidiaLibrary known = cupti_library();
  auto library = Library::open("CUPTI", known.candidates(), known.remedy);
  if (!library.ok()) return library.status();
  Cupti out;
  out.path_ = library->path();
  std::string missing;
#define FLASHLAB_LOAD(name, ...) load(*library, #name, out.functions_.name, missing);
  FLASHLAB_CUPTI_FUNCTIONS(FLASHLAB_LOAD)
#undef FLASHLAB_LOAD
  if (out.functions_.cuptiGetVersion != nullptr) out.functions_.cuptiGetVersion(&out.version_);
  if (!missing.empty() || out.version_ < kOldestCupti || out.version_ > kNewestCupti) {
    return Status::unsupported({"CUPTI",
                                fmt::format("{} with API {}{}", out.path_, out.version_,
                                            missing.empty() ? "" : " without " + missing),
                                fmt::format("API {} to {}", kOldestCupti, kNewestCupti),
                                known.remedy});
  }
  return out;
}

Result<const Cupti*> Cupti::get() {
  static const Result<Cupti> opened = open_cupti();
  if (!opened.ok()) return opened.status();
  return &*opened;
}

Status Cupti::check(int result, const char* call) const {
  if (result == kCuptiSuccess) return {};
  const char* text = nullptr;
  functions_.cuptiGetResultString(result, &text);
  const bool refused =
      result == kCuptiInsufficientPrivileges || result == kCuptiMultipleSubscribers;
  return Status(refused ? StatusCode::kUnsupported : StatusCode::kDeviceError,
                {"CUPTI", fmt::format("{}: {} ({})", call, text != nullptr ? text : "?", result),
                 "activities of kernels", remedy_of(result)});
}

Status Cupti::start() const {
  Inbox& in = inbox();
  {
    std::lock_guard lock(in.mutex);
    in.activities.clear();
    in.api = &functions_;
  }
  if (Status s =
          check(functions_.cuptiActivityRegisterCallbacks(buffer_requested, buffer_completed),
                "cuptiActivityRegisterCallbacks");
      !s.ok()) {
    return s;
  }
  for (const CuptiActivityKind kind : kKinds) {
    if (Status s = check(functions_.cuptiActivityEnable(kind), "cuptiActivityEnable"); !s.ok()) {
      for (const CuptiActivityKind each : kKinds) functions_.cuptiActivityDisable(each);
      return s;
    }
  }
  return {};
}

Result<std::vector<Activity>> Cupti::stop() const {
  constexpr std::uint32_t kForced = 1;
  const Status flushed = check(functions_.cuptiActivityFlushAll(kForced), "cuptiActivityFlushAll");
  for (const CuptiActivityKind kind : kKinds) functions_.cuptiActivityDisable(kind);
  if (!flushed.ok()) return flushed;
  std::size_t dropped = 0;
  functions_.cuptiActivityGetNumDroppedRecords(nullptr, 0, &dropped);
  if (dropped > 0) {
    return Status(StatusCode::kDeviceError, {"CUPTI", fmt::format("{} lost records", dropped),
                                             "all of them", "record fewer steps at once"});
  }
  Inbox& in = inbox();
  std::lock_guard lock(in.mutex);
  std::vector<Activity> out = std::move(in.activities);
  in.activities.clear();
  std::stable_sort(out.begin(), out.end(),
                   [](const Activity& a, const Activity& b) { return a.start_ns < b.start_ns; });
  return out;
}

}  // namespace flashlab::cuda
