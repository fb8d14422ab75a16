#include "train/layers/layers.h"

namespace flashlab::train {
namespace {

void column_sum(StepBuilder& b, TensorId dy, const LinearOptions& o) {
  const GradientSlot slot = b.gradient(o.bias);
  b.append({.name = "d " + o.name + " bias",
            .kind = OperationKind::kColumnSum,
            .operation_class = OperationClass::kElementwise,
            .inputs = {{Slot::kX, dy}},
            .outputs = {{Slot::kSum, slot.tensor}},
            .attributes = RowsAttributes{
                .rows = o.rows, .width = o.out, .accumulate_parameters = slot.accumulate}});
}

void linear_backward(StepBuilder& b, TensorId x, TensorId y, const LinearOptions& o) {
  const TensorId dy = b.gradient_of(y);
  const double flops =
      2.0 * static_cast<double>(o.rows) * static_cast<double>(o.in) * static_cast<double>(o.out);
  if (o.bias != kNoTensor) column_sum(b, dy, o);
  const GradientSlot dw = b.gradient(o.weight);
  b.append({.name = "d " + o.name + " weight",
            .kind = OperationKind::kProduct,
            .operation_class = OperationClass::kProduct,
            .inputs = {{Slot::kA, dy}, {Slot::kB, x}},
            .outputs = {{Slot::kC, dw.tensor}},
            .attributes = ProductAttributes{.m = o.out,
                                            .n = o.in,
                                            .k = o.rows,
                                            .a = {.leading = o.out, .transposed = true},
                                            .b = {.leading = o.in},
                                            .c = {.leading = o.in},
                                            .accumulate = dw.accumulate},
            .flops = flops});
  if (o.addend != kNoTensor) b.share_gradient(o.addend, y);
  const GradientSlot dx = b.gradient(x);
  b.append({.name = "d " + o.name,
            .kind = OperationKind::kProduct,
            .operation_class = OperationClass::kProduct,
            .inputs = {{Slot::kA, dy}, {Slot::kB, o.weight}},
            .outputs = {{Slot::kC, dx.tensor}},
            .attributes = ProductAttributes{.m = o.rows,
                                            .n = o.in,
                                            .k = o.out,
                                            .a = {.leading = o.out},
                                            .b = {.leading = o.in},
                                            .c = {.leading = o.in},
                                            .accumulate = dx.accumulate},
            .flops = flops});
}

}  // namespace

namespace {

// bias and addend as operations of their own, in the order in which the product would add them.
TensorId unfused(StepBuilder& b, TensorId x, const LinearOptions& o) {
  LinearOptions bare = o;
  bare.bias = bare.addend = kNoTensor;
  TensorId y = linear(b, x, bare);
  if (o.bias != kNoTensor) {
    const TensorId product = y;
    y = pointwise(b, {.name = o.name + " bias",
                      .function = Pointwise::kAddRow,
                      .a = product,
                      .b = o.bias,
                      .rows = o.rows,
                      .width = o.out,
                      .rung = o.rung});
    b.on_backward([&b, product, y, o] {
      const TensorId dy = b.gradient_of(y);
      b.share_gradient(product, y);
      column_sum(b, dy, o);
    });
  }
  return o.addend == kNoTensor ? y : sum_of(b, y, o.addend, o.rows, o.out);
}

}  // namespace

TensorId linear(StepBuilder& b, TensorId x, const LinearOptions& o) {
  if (!b.options().fused && (o.bias != kNoTensor || o.addend != kNoTensor)) return unfused(b, x, o);
  const TensorId y = b.activation(o.name, {o.rows, o.out});
  b.append({.name = o.name,
            .kind = OperationKind::kProduct,
            .operation_class = OperationClass::kProduct,
            .inputs = {{Slot::kA, x},
                       {Slot::kB, o.weight},
                       {Slot::kBias, o.bias},
                       {Slot::kAddend, o.addend}},
            .outputs = {{Slot::kC, y}},
            .attributes = ProductAttributes{.m = o.rows,
                                            .n = o.out,
                                            .k = o.in,
                                            .a = {.leading = o.in},
                                            .b = {.leading = o.in, .transposed = true},
                                            .c = {.leading = o.out}},
            .flops = 2.0 * static_cast<double>(o.rows) * static_cast<double>(o.in) *
                     static_cast<double>(o.out),
            .rung = o.rung});
  b.on_backward([&b, x, y, o] { linear_backward(b, x, y, o); });
  return y;
}

namespace {

// One share of a product: rows [first, first + out) of the weight, into columns of y or all of it.
struct Share {
  std::string name;
  TensorId x, y;
  std::int64_t rows, in, out, first;
  std::int64_t y_column, y_width;
  Rung rung;
};

void share_forward(StepBuilder& b, const Share& s, TensorId weight) {
  b.append(
      {.name = s.name,
       .kind = OperationKind::kProduct,
       .operation_class = OperationClass::kProduct,
       .inputs = {{Slot::kA, s.x}, {Slot::kB, weight}},
       .outputs = {{Slot::kC, s.y}},
       .attributes =
           ProductAttributes{.m = s.rows,
                             .n = s.out,
                             .k = s.in,
                             .a = {.leading = s.in},
                             .b = {.offset = s.first * s.in, .leading = s.in, .transposed = true},
                             .c = {.offset = s.y_column, .leading = s.y_width}},
       .flops = 2.0 * static_cast<double>(s.rows * s.in) * static_cast<double>(s.out),
       .rung = s.rung});
}

void share_backward(StepBuilder& b, const Share& s, TensorId weight, const GradientSlot& dw) {
  const TensorId dy = b.gradient_of(s.y);
  const double flops = 2.0 * static_cast<double>(s.rows * s.in) * static_cast<double>(s.out);
  const ProductAttributes::Matrix dy_matrix = {.offset = s.y_column, .leading = s.y_width};
  ProductAttributes::Matrix turned = dy_matrix;
  turned.transposed = true;
  b.append({.name = "d " + s.name + " weight",
            .kind = OperationKind::kProduct,
            .operation_class = OperationClass::kProduct,
            .inputs = {{Slot::kA, dy}, {Slot::kB, s.x}},
            .outputs = {{Slot::kC, dw.tensor}},
            .attributes = ProductAttributes{.m = s.out,
                                            .n = s.in,
                                            .k = s.rows,
                                            .a = turned,
                                            .b = {.leading = s.in},
                                            .c = {.offset = s.first * s.in, .leading = s.in},
                                            .accumulate = dw.accumulate},
            .flops = flops});
  const GradientSlot dx = b.gradient(s.x);
  b.append({.name = "d " + s.name,
            .kind = OperationKind::kProduct,
            .operation_class = OperationClass::kProduct,
            .inputs = {{Slot::kA, dy}, {Slot::kB, weight}},
            .outputs = {{Slot::kC, dx.tensor}},
            .attributes = ProductAttributes{.m = s.rows,
                                            .n = s.in,
                                            .k = s.out,
                                            .a = dy_matrix,
                                            .b = {.offset = s.first * s.in, .leading = s.in},
                                            .c = {.leading = s.in},
                                            .accumulate = dx.accumulate},
            .flops = flops});
}

}  // namespace

std::vector<TensorId> linear_shares(StepBuilder& b, TensorId x, const LinearOptions& o,
                                    const std::vector<std::string>& names, bool together) {
  const auto count = static_cast<std::int64_t>(names.size());
  const std::int64_t out = o.out / count;
  std::vector<TensorId> results;
  if (together) results.push_back(b.activation(o.name, {o.rows, o.out}));
  std::vector<Share> shares;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::string& name = names[static_cast<std::size_t>(i)];
    if (!together) results.push_back(b.activation(name, {o.rows, out}));
    shares.push_back({.name = name,
                      .x = x,
                      .y = results.back(),
                      .rows = o.rows,
                      .in = o.in,
                      .out = out,
                      .first = i * out,
                      .y_column = together ? i * out : 0,
                      .y_width = together ? o.out : out,
                      .rung = o.rung});
    share_forward(b, shares.back(), o.weight);
  }
  b.on_backward([&b, shares, weight = o.weight] {
    const GradientSlot dw = b.gradient(weight);
    for (const Share& share : shares) share_backward(b, share, weight, dw);
  });
  return results;
}

}  // namespace flashlab::train
