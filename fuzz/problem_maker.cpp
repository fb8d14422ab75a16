#include "problem_maker.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

namespace flashlab::fuzz {
namespace {

std::size_t reach_bytes(const TensorSpec& spec) {
  std::int64_t last = 0;
  for (int i = 0; i < spec.rank; ++i) {
    if (spec.shape[i] == 0) return 0;
    if (spec.shape[i] > 1) last += (spec.shape[i] - 1) * spec.strides[i];
  }
  return static_cast<std::size_t>(last + 1) * size_of(spec.dtype);
}

double load(DType dtype, const unsigned char* from) {
  const auto read = [&](auto value) {
    std::memcpy(&value, from, sizeof value);
    return value;
  };
  switch (dtype) {
    case DType::kFp64:
      return read(0.0);
    case DType::kFp32:
      return read(0.0f);
    case DType::kFp16:
      return float_from_fp16(read(std::uint16_t{}));
    case DType::kBf16:
      return float_from_bf16(read(std::uint16_t{}));
    default:
      return *from;
  }
}

void store(DType dtype, unsigned char* to, double value) {
  const auto write = [&](auto typed) { std::memcpy(to, &typed, sizeof typed); };
  switch (dtype) {
    case DType::kFp64:
      return write(value);
    case DType::kFp32:
      return write(static_cast<float>(value));
    case DType::kFp16:
      return write(fp16_from_float(static_cast<float>(value)));
    case DType::kBf16:
      return write(bf16_from_float(static_cast<float>(value)));
    default:
      *to = value > 0;
  }
}

using Shape = std::array<std::int64_t, TensorSpec::kMaxRank>;

// Row-major or in another memory order, with or without gaps between rows.
TensorSpec make_spec(DType dtype, int rank, Shape shape, bool output, Bytes& bytes) {
  TensorSpec spec;
  spec.dtype = dtype;
  spec.rank = rank;
  spec.shape = shape;
  std::array<int, TensorSpec::kMaxRank> order = {0, 1, 2, 3};  // outermost first
  if (bytes.one_in(3)) std::swap(order[0], order[1]);
  if (rank == 4 && bytes.one_in(3)) std::swap(order[1], order[2]);
  std::int64_t stride = 1;
  for (int i = rank - 1; i >= 0; --i) {
    const int dim = i == rank - 1 ? rank - 1 : order[i];
    spec.strides[dim] = stride;
    stride = stride * std::max<std::int64_t>(shape[dim], 1) + (bytes.one_in(4) ? 3 : 0);
    // A dimension that repeats one piece of memory; never the innermost, never of an output.
    if (!output && i < rank - 1 && bytes.one_in(12)) spec.strides[dim] = 0;
  }
  return spec;
}

}  // namespace

Buffer::Buffer(const TensorSpec& spec, Bytes& bytes) : spec_(spec), bytes_(reach_bytes(spec)) {
  // An element's own alignment is all that a caller must give.
  offset_ = static_cast<std::size_t>(bytes.range(0, 3)) * size_of(spec.dtype);
  memory_.reset(static_cast<unsigned char*>(std::malloc(offset_ + bytes_)));
  if (memory_ == nullptr && offset_ + bytes_ > 0) finding("the fuzzer itself is out of memory");
  // Values from a seed, so that inputs stay short and their bytes decide about structure.
  std::uint32_t state = bytes.raw<std::uint16_t>() * 2654435761u + 1;
  for (std::size_t at = 0; at + size_of(spec.dtype) <= bytes_; at += size_of(spec.dtype)) {
    state = state * 1664525u + 1013904223u;
    const double value = static_cast<std::int32_t>(state) / 2147483648.0;
    store(spec_.dtype, memory_.get() + offset_ + at, value);
  }
}

Buffer Buffer::copy() const {
  Buffer other;
  other.spec_ = spec_;
  other.bytes_ = bytes_;
  other.offset_ = offset_;
  other.memory_.reset(static_cast<unsigned char*>(std::malloc(offset_ + bytes_)));
  if (offset_ + bytes_ > 0) std::memcpy(other.memory_.get(), memory_.get(), offset_ + bytes_);
  return other;
}

Tensor Buffer::tensor() const {
  return {bytes_ > 0 ? memory_.get() + offset_ : nullptr, spec_};
}

bool Buffer::same_bytes(const Buffer& other) const {
  return bytes_ == other.bytes_ &&
         (bytes_ == 0 ||
          std::memcmp(memory_.get() + offset_, other.memory_.get() + offset_, bytes_) == 0);
}

unsigned char* Buffer::address(const std::int64_t* index) const {
  std::int64_t element = 0;
  for (int i = 0; i < spec_.rank; ++i) element += index[i] * spec_.strides[i];
  return memory_.get() + offset_ + static_cast<std::size_t>(element) * size_of(spec_.dtype);
}

double Buffer::at(const std::int64_t* index) const {
  return load(spec_.dtype, address(index));
}

void Buffer::set(const std::int64_t* index, double value) {
  store(spec_.dtype, address(index), value);
}

namespace {

template <class View>
void without_batch(View& view) {
  TensorSpec& s = view.spec;
  --s.rank;
  for (std::size_t i = 0; i + 1 < TensorSpec::kMaxRank; ++i) {
    s.shape[i] = s.shape[i + 1];
    s.strides[i] = s.strides[i + 1];
  }
}

}  // namespace

template <class Tensors>
void Made::add_lengths(Tensors& t) const {
  const auto give = [](const std::vector<std::int64_t>& from, std::optional<ConstTensor>& to) {
    if (!from.empty()) to = flashlab::tensor(from.data(), {static_cast<std::int64_t>(from.size())});
  };
  give(cu_q, t.cu_seqlens_q);
  give(cu_k, t.cu_seqlens_k);
  give(used_q, t.seqused_q);
  give(used_k, t.seqused_k);
  if (!cu_k.empty()) {
    without_batch(t.k);
    without_batch(t.v);
  }
  if (!cu_q.empty()) {
    without_batch(t.q);
    without_batch(t.o);
  }
  if constexpr (std::is_same_v<Tensors, BackwardTensors>) {
    if (!cu_q.empty()) {
      without_batch(t.lse);
      without_batch(t.d_o);
      without_batch(t.dq);
      if (t.d_lse) without_batch(*t.d_lse);
    }
    if (!cu_k.empty()) {
      without_batch(t.dk);
      without_batch(t.dv);
    }
  } else if (!cu_q.empty()) {
    without_batch(*t.lse);
  }
}

ForwardTensors Made::forward() const {
  ForwardTensors t{.q = q.tensor(), .k = k.tensor(), .v = v.tensor(), .o = o.tensor()};
  t.lse = lse.tensor();
  if (mask) t.mask = mask->tensor();
  add_lengths(t);
  return t;
}

BackwardTensors Made::backward() const {
  BackwardTensors t{.q = q.tensor(),
                    .k = k.tensor(),
                    .v = v.tensor(),
                    .o = o.tensor(),
                    .lse = lse.tensor(),
                    .d_o = d_o.tensor(),
                    .dq = dq.tensor(),
                    .dk = dk.tensor(),
                    .dv = dv.tensor()};
  if (mask) t.mask = mask->tensor();
  if (d_lse) t.d_lse = d_lse->tensor();
  add_lengths(t);
  return t;
}

Made Made::copy() const {
  Made other{options,    q.copy(),  k.copy(),  v.copy(),  o.copy(), lse.copy(),
             d_o.copy(), dq.copy(), dk.copy(), dv.copy(), {},       {}};
  if (mask) other.mask = mask->copy();
  if (d_lse) other.d_lse = d_lse->copy();
  other.cu_q = cu_q;
  other.cu_k = cu_k;
  other.used_q = used_q;
  other.used_k = used_k;
  return other;
}

namespace {

// Mostly growing offsets into `rows`, or mostly lengths of at most so many.
std::vector<std::int64_t> make_lengths(Bytes& bytes, std::int64_t count, std::int64_t rows,
                                       bool offsets) {
  std::vector<std::int64_t> out;
  std::int64_t last = 0;
  for (std::int64_t n = 0; n < count; ++n) {
    std::int64_t value = bytes.range(0, static_cast<int>(rows));
    if (offsets) value = last = std::max(last, value / 2);
    if (bytes.one_in(64)) value = bytes.raw<std::int64_t>();
    out.push_back(value);
  }
  return out;
}

void make_sequences(Bytes& bytes, Made& m, std::int64_t batch, std::int64_t sq, std::int64_t sk) {
  if (!bytes.one_in(3)) return;
  std::int64_t entries = batch;
  if (batch == 1 && bytes.one_in(2)) {
    entries = bytes.range(0, 4);
    m.cu_q = make_lengths(bytes, entries + 1, sq, true);
    m.cu_k = make_lengths(bytes, entries + 1, sk, true);
  }
  if (m.cu_q.empty() || bytes.one_in(3)) m.used_q = make_lengths(bytes, entries, sq, false);
  if (bytes.one_in(3)) m.used_k = make_lengths(bytes, entries, sk, false);
}

}  // namespace

Made make_problem(Bytes& bytes) {
  const DType dtype = std::array{DType::kFp32, DType::kBf16, DType::kFp16,
                                 DType::kFp64}[static_cast<std::size_t>(bytes.range(0, 3))];
  const bool wide = dtype != DType::kFp64 && bytes.one_in(4);
  const DType out = wide ? DType::kFp32 : dtype;
  const DType lse_type = dtype == DType::kFp64 && bytes.one_in(2) ? DType::kFp64 : DType::kFp32;
  const std::int64_t batch = bytes.one_in(20) ? 0 : bytes.range(1, 2);
  const std::int64_t heads_k = bytes.range(1, 3);
  const std::int64_t heads_q = bytes.one_in(20) ? 0 : heads_k * bytes.range(1, 3);
  const std::int64_t sq = bytes.one_in(20) ? 0 : bytes.range(1, bytes.one_in(4) ? 70 : 9);
  const std::int64_t sk = bytes.one_in(20) ? 0 : bytes.range(1, bytes.one_in(4) ? 140 : 17);
  const std::int64_t d = bytes.range(1, bytes.one_in(4) ? 80 : 17);
  const std::int64_t dv = bytes.one_in(2) ? d : bytes.range(1, bytes.one_in(4) ? 80 : 17);

  Made m;
  m.options.causal = std::array{Causal::kNone, Causal::kTopLeft, Causal::kBottomRight,
                                Causal::kCausal}[static_cast<std::size_t>(bytes.range(0, 3))];
  if (bytes.one_in(3)) m.options.scale = static_cast<float>(bytes.range(-200, 200)) / 100.0f;
  m.options.deterministic = bytes.one_in(3);
  if (bytes.one_in(4)) m.options.gradient_mode = GradientMode::kAccumulate;
  if (bytes.one_in(4)) m.options.tiles = {bytes.range(0, 100), bytes.range(0, 100)};

  const auto buffer = [&](DType type, int rank, Shape shape, bool output) {
    return Buffer(make_spec(type, rank, shape, output, bytes), bytes);
  };
  m.q = buffer(dtype, 4, {batch, sq, heads_q, d}, false);
  m.k = buffer(dtype, 4, {batch, sk, heads_k, d}, false);
  m.v = buffer(dtype, 4, {batch, sk, heads_k, dv}, false);
  m.o = buffer(out, 4, {batch, sq, heads_q, dv}, true);
  m.lse = buffer(lse_type, 3, {batch, heads_q, sq}, true);
  m.d_o = buffer(bytes.one_in(4) ? out : dtype, 4, {batch, sq, heads_q, dv}, false);
  m.dq = buffer(out, 4, {batch, sq, heads_q, d}, true);
  m.dk = buffer(out, 4, {batch, sk, heads_k, d}, true);
  m.dv = buffer(out, 4, {batch, sk, heads_k, dv}, true);
  if (bytes.one_in(3)) {
    const DType type = bytes.one_in(2) ? DType::kBool : (bytes.one_in(2) ? DType::kFp32 : dtype);
    const auto extent = [&](std::int64_t full) { return bytes.one_in(3) ? 1 : full; };
    m.mask = buffer(type, 4, {extent(batch), extent(heads_q), extent(sq), extent(sk)}, false);
    if (type != DType::kBool) {
      m.mask->for_each([&](const std::int64_t* index) {
        if (m.mask->at(index) > 0.6) m.mask->set(index, -HUGE_VAL);
      });
    }
  }
  if (bytes.one_in(4)) m.d_lse = buffer(lse_type, 3, {batch, heads_q, sq}, false);
  if (bytes.one_in(8)) {
    m.options.attention_chunk = bytes.range(1, 20);
    m.options.window = Window{.alignment = Alignment::kBottomRight};
    if (m.options.causal == Causal::kTopLeft) m.options.causal = Causal::kBottomRight;
  }
  make_sequences(bytes, m, batch, sq, sk);
  return m;
}

namespace {

std::int64_t wild_number(Bytes& bytes) {
  switch (bytes.range(0, 7)) {
    case 0:
      return bytes.raw<std::int64_t>();
    case 1:
      return std::int64_t{1} << bytes.range(0, 62);
    case 2:
      return -static_cast<std::int64_t>(bytes.byte());
    case 3:
      return INT64_MAX - bytes.byte();
    default:
      return bytes.range(0, 300);
  }
}

TensorSpec wild_spec(Bytes& bytes, const TensorSpec* model) {
  TensorSpec spec = model != nullptr ? *model : TensorSpec{};
  if (model == nullptr || bytes.one_in(8)) {
    spec.dtype = static_cast<DType>(bytes.range(0, 8));
    spec.rank = bytes.one_in(8) ? bytes.range(-1, 9) : 4;
    for (auto& extent : spec.shape) extent = wild_number(bytes);
  }
  for (auto& stride : spec.strides) stride = wild_number(bytes);
  if (!bytes.one_in(4)) {
    // Plausible strides get further into the checks. Overflow is part of the game.
    std::uint64_t stride = 1;
    for (int i = TensorSpec::kMaxRank - 1; i >= 0; --i) {
      spec.strides[i] = static_cast<std::int64_t>(stride);
      stride *= static_cast<std::uint64_t>(spec.shape[i]);
    }
  }
  if (bytes.one_in(16)) spec.device = {DeviceKind::kCuda, bytes.range(-1, 3)};
  if (bytes.one_in(16)) spec.alignment_bytes = static_cast<int>(wild_number(bytes));
  return spec;
}

Options wild_options(Bytes& bytes) {
  Options o;
  if (bytes.one_in(3)) o.scale = bytes.raw<float>();
  o.causal = static_cast<Causal>(bytes.range(0, 3));
  o.precision = static_cast<Precision>(bytes.range(0, 1));
  o.gradient_mode = static_cast<GradientMode>(bytes.range(0, 1));
  o.deterministic = bytes.one_in(2);
  if (bytes.one_in(3)) {
    const auto names = implementations({});
    o.implementation = bytes.one_in(8) ? std::string(3, static_cast<char>(bytes.byte()))
                                       : names[bytes.byte() % names.size()];
  }
  if (bytes.one_in(4)) o.tiles = {bytes.raw<std::int32_t>(), bytes.raw<std::int32_t>()};
  if (bytes.one_in(16)) o.window = Window{wild_number(bytes), wild_number(bytes)};
  if (bytes.one_in(16)) o.attention_chunk = wild_number(bytes);
  if (bytes.one_in(16)) o.softcap = bytes.raw<float>();
  if (bytes.one_in(16)) o.dropout = bytes.raw<float>();
  if (bytes.one_in(16)) o.max_seqlen_q = wild_number(bytes);
  return o;
}

}  // namespace

Problem make_wild_problem(Bytes& bytes) {
  Problem p;
  p.pass = bytes.one_in(2) ? Pass::kBackward : Pass::kForward;
  p.options = wild_options(bytes);
  p.q = wild_spec(bytes, nullptr);
  p.k = wild_spec(bytes, &p.q);
  p.v = wild_spec(bytes, &p.k);
  p.o = wild_spec(bytes, &p.q);
  TensorSpec rows = p.q;
  rows.rank = 3;
  rows.shape = {p.q.shape[0], p.q.shape[2], p.q.shape[1], 0};
  rows.dtype = DType::kFp32;
  if (!bytes.one_in(4)) p.lse = wild_spec(bytes, &rows);
  if (bytes.one_in(4)) p.mask = wild_spec(bytes, bytes.one_in(2) ? &p.q : nullptr);
  if (p.pass == Pass::kBackward && !bytes.one_in(8)) {
    p.d_o = wild_spec(bytes, &p.o);
    p.dq = wild_spec(bytes, &p.q);
    p.dk = wild_spec(bytes, &p.k);
    p.dv = wild_spec(bytes, &p.v);
    if (bytes.one_in(3)) p.d_lse = wild_spec(bytes, &rows);
  }
  if (bytes.one_in(16)) p.sinks = wild_spec(bytes, nullptr);
  if (bytes.one_in(16)) p.cu_seqlens_q = wild_spec(bytes, nullptr);
  if (bytes.one_in(16)) p.cu_seqlens_k = wild_spec(bytes, nullptr);
  if (bytes.one_in(16)) p.seqused_k = wild_spec(bytes, nullptr);
  if (bytes.one_in(16)) p.block_table = wild_spec(bytes, nullptr);
  if (bytes.one_in(16)) p.cache_batch_idx = wild_spec(bytes, nullptr);
  if (bytes.one_in(16)) p.leftpad_k = wild_spec(bytes, nullptr);
  return p;
}

}  // namespace flashlab::fuzz
