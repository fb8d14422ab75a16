// append: rows into a cache that the caller holds.

#include <optional>
#include <string>

#include "calls.h"
#include "contexts.h"
#include "errors.h"
#include "plans.h"

namespace flashlab::python {
namespace {

// Arguments of one call on arrays of one framework; the caller's names are the library's but for
// those of the cache.
class AppendArguments {
 public:
  explicit AppendArguments(const Framework& framework) : framework_(framework) {}

  Tensor written(const char* name, nb::handle array, bool integers = false) {
    const Argument& read = keep(name, array, integers);
    if (read.read_only() || read.copied()) {
      raise(PyExc_ValueError, name, "a read-only array", "an array that can be written",
            "keys and values are written into it");
    }
    return read.output();
  }
  ConstTensor input(const char* name, nb::handle array, bool integers = false) {
    Argument& read = keep(name, array, integers);
    read.make_readable(framework_);
    return read.input();
  }
  std::optional<ConstTensor> optional(const char* name, nb::handle array, bool integers = false) {
    if (array.is_none()) return std::nullopt;
    return input(name, array, integers);
  }

 private:
  Argument& keep(const char* name, nb::handle array, bool integers) {
    const Framework& own = framework_of(array, name);
    if (own.adapter.ptr() != framework_.adapter.ptr()) {
      raise(PyExc_TypeError, name, nb::type_name(array.type()).c_str(),
            "an array of k_cache's framework", "convert it");
    }
    Argument& argument = arguments_[count_++];
    argument = Argument(own, name, array, integers);
    return argument;
  }

  static constexpr std::size_t kMost = 14;
  const Framework& framework_;
  std::array<Argument, kMost> arguments_;
  std::size_t count_ = 0;
};

Status in_pythons_words(const Status& status) {
  if (status.ok()) return status;
  Status shown = renamed(status, "k", "k_cache");
  shown = renamed(shown, "v", "v_cache");
  return renamed(shown, "seqused_k", "cache_seqlens");
}

}  // namespace

nb::object append(nb::handle k_cache, nb::handle v_cache, nb::handle k_new, nb::handle v_new,
                  nb::handle cache_seqlens, const GivenAppend& given) {
  const Framework& framework = framework_of(k_cache, "k_cache");
  AppendArguments in(framework);
  AppendTensors t;
  t.k = in.written("k_cache", k_cache);
  t.v = in.written("v_cache", v_cache);
  t.k_new = in.input("k_new", k_new);
  t.v_new = in.input("v_new", v_new);
  t.seqused_k = in.input("cache_seqlens", cache_seqlens, true);
  t.block_table = in.optional("block_table", given.block_table, true);
  t.cache_batch_idx = in.optional("cache_batch_idx", given.cache_batch_idx, true);
  t.cu_seqlens_new = in.optional("cu_seqlens_new", given.cu_seqlens_new, true);
  if (!given.seqused_after.is_none()) {
    t.seqused_after = in.written("seqused_after", given.seqused_after, true);
  }
  t.rotary_cos = in.optional("rotary_cos", given.rotary_cos);
  t.rotary_sin = in.optional("rotary_sin", given.rotary_sin);
  t.rotary_positions = in.optional("rotary_positions", given.rotary_positions, true);
  t.q = in.optional("q", given.q);
  t.cu_seqlens_q = in.optional("cu_seqlens_q", given.cu_seqlens_q, true);
  const Device device = t.k.spec.device;
  const Context& context = context_of(device, "k_cache");
  Memory turned;
  if (t.q) {
    TensorSpec spec = t.q->spec;
    std::int64_t stride = 1;
    for (int i = spec.rank - 1; i >= 0; --i) {
      spec.strides[i] = stride;
      stride *= spec.shape[i];
    }
    set_alignment(spec, nullptr);
    turned = make_memory(framework, result(framework, given.q, spec).factory);
    t.q_rotated = Tensor{turned.data, spec};
  }
  const AppendOptions options{
      given.interleaved ? RotaryPairs::kInterleaved : RotaryPairs::kHalves,
      given.consecutive ? RotaryQueries::kConsecutive : RotaryQueries::kFirst};
  const Stream stream = stream_of(framework, device);
  Status status;
  {
    nb::gil_scoped_release release;
    status = flashlab::append(context, stream, t, options);
    if (status.ok() && framework.synchronous) status = synchronize(context, stream);
  }
  require(in_pythons_words(status));
  return t.q ? turned.array : nb::object(nb::none());
}

}  // namespace flashlab::python
