#include "cpu/plain/elements.h"

namespace flashlab::internal {
namespace {

// One element type: how its bits are stored, read and rounded.
template <class Stored>
struct Plain {
  using Bits = Stored;
  static Stored widen(Stored value) { return value; }
  template <class Acc>
  static Stored narrow(Acc value) {
    return static_cast<Stored>(value);
  }
};
struct Bf16 {
  using Bits = std::uint16_t;
  static float widen(Bits bits) { return widen_bf16(bits); }
  static Bits narrow(float value) { return narrow_bf16(value); }
};
struct Fp16 {
  using Bits = std::uint16_t;
  static float widen(Bits bits) { return widen_fp16(bits); }
  static Bits narrow(float value) { return narrow_fp16(value); }
};

template <class Type, class Acc>
void load(const void* data, std::int64_t first, std::int64_t count, Acc* out) {
  const auto* in = static_cast<const typename Type::Bits*>(data) + first;
  for (std::int64_t c = 0; c < count; ++c) out[c] = static_cast<Acc>(Type::widen(in[c]));
}

template <class Type, class Acc>
void store(void* data, std::int64_t first, std::int64_t count, const Acc* in, bool accumulate) {
  auto* out = static_cast<typename Type::Bits*>(data) + first;
  if (accumulate) {
    for (std::int64_t c = 0; c < count; ++c) {
      out[c] = Type::narrow(static_cast<Acc>(Type::widen(out[c])) + in[c]);
    }
  } else {
    for (std::int64_t c = 0; c < count; ++c) out[c] = Type::narrow(in[c]);
  }
}

}  // namespace

// The API admits only these four; the plans of this folder declare only them.
template <class Acc>
void load_row(DType dtype, const void* data, std::int64_t first, std::int64_t count, Acc* out) {
  switch (dtype) {
    case DType::kFp64:
      return load<Plain<double>>(data, first, count, out);
    case DType::kFp16:
      return load<Fp16>(data, first, count, out);
    case DType::kBf16:
      return load<Bf16>(data, first, count, out);
    default:
      return load<Plain<float>>(data, first, count, out);
  }
}

template <class Acc>
void store_row(DType dtype, void* data, std::int64_t first, std::int64_t count, const Acc* values,
               bool accumulate) {
  switch (dtype) {
    case DType::kFp64:
      return store<Plain<double>>(data, first, count, values, accumulate);
    case DType::kFp16:
      return store<Fp16>(data, first, count, values, accumulate);
    case DType::kBf16:
      return store<Bf16>(data, first, count, values, accumulate);
    default:
      return store<Plain<float>>(data, first, count, values, accumulate);
  }
}

template void load_row(DType, const void*, std::int64_t, std::int64_t, float*);
template void load_row(DType, const void*, std::int64_t, std::int64_t, double*);
template void store_row(DType, void*, std::int64_t, std::int64_t, const float*, bool);
template void store_row(DType, void*, std::int64_t, std::int64_t, const double*, bool);

}  // namespace flashlab::internal
