#include "train/step/step.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "train/layers/layers.h"
#include "train/plan/builder.h"
#include "train/plan/documents.h"
#include "train/plan/fusion.h"
#include "train/plan/recompute.h"

namespace flashlab::train {
namespace {

bool reduces_each_micro_batch(const StepOptions& options) {
  return options.reduce_each_micro_batch && options.accumulate > 1;
}

Status check_shares(const StepOptions& options) {
  const std::int64_t shares = options.shares, ranks = options.ranks;
  if (shares < 1 || options.batch % shares != 0) {
    return Status::invalid(
        {"shares", fmt::format("{} of a batch of {}", shares, options.batch),
         "a divisor of the batch",
         fmt::format("--batch {}",
                     shares * std::max<std::int64_t>(
                                  options.batch / std::max<std::int64_t>(shares, 1), 1))});
  }
  if (ranks < 1 || options.rank < 0 || options.rank >= ranks) {
    return Status::invalid(
        {"rank", fmt::format("{} of {}", options.rank, ranks), "one of at least 1 ranks", ""});
  }
  // Neighbours are added first: of other numbers a rank would hold no whole branch of the tree.
  const bool whole = shares % ranks == 0;
  if (ranks > 1 && !(whole && std::has_single_bit(static_cast<std::uint64_t>(shares / ranks)))) {
    return Status::invalid(
        {"shares", fmt::format("{} on {} ranks", shares, ranks),
         fmt::format("{0}, {1} or another power of two times {0}", ranks, 2 * ranks),
         fmt::format("--shares {}, or another number of ranks", ranks)});
  }
  const bool narrow = size_of(policy_of(options.precision).gradient) == 2;
  if (reduces_each_micro_batch(options) && narrow) {
    return Status::unsupported({"reduce-every",
                                fmt::format("micro-batch with {}", to_string(options.precision)),
                                "step there", "--reduce-every step"});
  }
  // What ranks add is fp32 and rounded once; what a rank adds itself it would round each time.
  const bool adds = options.mode == StepMode::kBackward || options.mode == StepMode::kFull;
  const bool added_once = shares == ranks && options.precision == Precision::kLeanBf16;
  if (shares > 1 && narrow && adds && !added_once) {
    return Status::unsupported(
        {"shares", fmt::format("{} with {}", shares, to_string(options.precision)),
         options.precision == Precision::kLeanBf16 ? "one on each rank"
                                                   : "a precision whose gradients are fp32 or fp64",
         "--precision bf16 keeps them in fp32"});
  }
  return {};
}

Status check(const ModelConfig& model, const StepOptions& options) {
  if (Status s = validate(model); !s.ok()) return s;
  constexpr std::int64_t kMostRows = std::int64_t{1} << 40;
  if (options.batch < 1 || options.batch > kMostRows) {
    return Status::invalid({"batch", fmt::format("{}", options.batch), "at least 1 sequence", ""});
  }
  if (options.accumulate < 1 || options.accumulate > 4096) {
    return Status::invalid(
        {"accumulate", fmt::format("{}", options.accumulate), "1 to 4096 micro-batches", ""});
  }
  if (Status s = check_shares(options); !s.ok()) return s;
  // A step lists layers and chunks of logits of every micro-batch: more of them than this would be
  // planned for minutes and in gigabytes.
  constexpr std::int64_t kMostParts = 8 * kMostLayers;
  if (model.layers * options.accumulate * options.shares > kMostParts) {
    return Status::invalid({"accumulate",
                            fmt::format("{} micro-batches of {} layers",
                                        options.accumulate * options.shares, model.layers),
                            fmt::format("at most {} layers in all micro-batches", kMostParts),
                            "a larger batch makes fewer of them"});
  }
  const std::int64_t context = options.context == 0 ? model.context : options.context;
  const double logits = static_cast<double>(options.batch) * static_cast<double>(context) *
                        static_cast<double>(model.vocabulary) *
                        static_cast<double>(options.accumulate);
  const double most_logits = static_cast<double>(kMostParts) *
                             static_cast<double>(std::max<std::int64_t>(options.logits_bytes, 1)) /
                             8;
  if (options.fused && logits > most_logits) {
    return Status::invalid({"batch", fmt::format("{:.3g} logits of a step", logits),
                            fmt::format("at most {:.3g}", most_logits),
                            "a smaller batch, context or vocabulary"});
  }
  if (options.documents && options.attention == "naive") {
    return Status::invalid({"documents", "--attention naive, which has a mask of its own",
                            "an attention that takes sequences", "leave --attention out"});
  }
  const bool plain_scores = model.keys() == model.heads && model.attention_softcap == 0 &&
                            (model.window == 0 || model.window >= context);
  if (options.attention == "naive" && !plain_scores) {
    return Status::invalid({"attention", "naive",
                            "an attention that has grouped heads, windows and softcaps",
                            "leave --attention out"});
  }
  if (options.context < 0 || options.context > model.context) {
    return Status::invalid({"context", fmt::format("{}", options.context),
                            fmt::format("1 to the model's {} tokens", model.context),
                            "give the model a longer context"});
  }
  if (options.cached < 0 || options.cached > model.context) {
    return Status::invalid({"cached", fmt::format("{}", options.cached),
                            fmt::format("1 to the model's {} tokens", model.context), ""});
  }
  if (!(options.loss_scale >= 1 && options.loss_scale <= 0x1p40)) {
    return Status::invalid(
        {"loss-scale", fmt::format("{}", options.loss_scale), "1 to 2^40", "65536 is usual"});
  }
  std::int64_t grouped = 0;
  for (const CheckpointGroup& group : options.checkpoint) {
    if (group.layers < 1) {
      return Status::invalid(
          {"checkpoint", fmt::format("{}", group.layers), "groups of at least 1 layer", ""});
    }
    grouped += group.layers;
  }
  if (grouped > model.layers) {
    return Status::invalid({"checkpoint", fmt::format("groups of {} layers together", grouped),
                            fmt::format("at most the model's {}", model.layers), ""});
  }
  return {};
}

void micro_batch(StepBuilder& b, LayerContext context) {
  const ModelConfig& model = context.model;
  b.set_phase(Phase::kForward);
  b.enter(-1, "embedding");
  TensorId x = embedding(b, context);
  if (drops(b, model)) {
    x = dropout(b, x,
                {.probability = model.dropout,
                 .site = dropout_site(b, context, DropoutPlace::kEmbedding, -1)});
  }
  if (context.traits().has_rope() && b.options().attention != "naive") {
    rope_angles(b, context);
  }
  for (int layer = 0; layer < model.layers; ++layer) {
    x = attention_block(b, x, context, layer);
    x = mlp_block(b, x, context, layer);
  }
  b.enter(-1, "head");
  x = norm(b, x, context, names_of(model.family).final_norm);
  if (b.decodes()) {
    logits(b, x, context);
    return;
  }
  loss(b, x, context);
  b.run_backward();
}

// Of several ranks each adds its own losses first.
void mean_loss(StepBuilder& b) {
  b.enter(-1, "head");
  b.set_phase(Phase::kForward);
  const int ranks = b.options().ranks;
  const std::int64_t rows = b.plan().tensor(b.plan().losses).elements();
  StepBuilder::Call mean = {
      .name = "mean loss",
      .kind = OperationKind::kMeanLoss,
      .operation_class = OperationClass::kLoss,
      .inputs = {{Slot::kLosses, b.plan().losses}},
      .outputs = {{Slot::kLoss, b.plan().loss}},
      .attributes = MeanLossAttributes{.rows = rows * ranks, .shares = own_shares(b.options())}};
  if (ranks > 1) {
    const Operand sum = {Slot::kSum, b.persistent("loss sum", {1}, Element::kFp64, Role::kResult)};
    StepBuilder::Call own = mean;
    own.name = "loss sum";
    own.outputs = {sum};
    own.attributes = MeanLossAttributes{.rows = rows, .shares = own_shares(b.options())};
    b.append(own);
    b.append({.name = "all-reduce loss",
              .kind = OperationKind::kAllReduce,
              .operation_class = OperationClass::kCommunication,
              .inputs = {sum},
              .outputs = {sum},
              .attributes = CollectiveAttributes{}});
    mean.inputs = {sum};
  }
  b.append(mean);
}

}  // namespace

Result<StepPlan> build_step(const ModelConfig& model, const StepOptions& requested) {
  StepOptions options = requested;
  if (options.context == 0) options.context = model.context;
  if (options.mode == StepMode::kDecode) {
    options.batch = options.samples;
    options.context = options.accumulate = 1;
    if (options.cached == 0) options.cached = model.context;
    options.documents = false;
    options.shares = options.ranks = 1;
    options.rank = 0;
    options.checkpoint.clear();
  }
  if (Status s = check(model, options); !s.ok()) return s;
  StepBuilder b(options);
  LayerContext context = {
      .model = model, .batch = options.batch / options.shares, .context = options.context};
  StepPlan& plan = b.plan();
  plan.any_threads = options.deterministic || (requested.shares > 1 && !options.gpu);
  const std::int64_t sequences = own_sequences(options);
  const std::int64_t shares = own_shares(options);
  plan.tokens = b.persistent("tokens", {sequences, options.context}, Element::kInt32, Role::kBatch);
  plan.scalars = b.persistent("scalars", {kScalars}, Element::kFp64, Role::kBatch);
  if (b.decodes()) {
    plan.lengths = b.persistent("lengths", {2, options.batch}, Element::kInt32, Role::kBatch);
  } else {
    plan.targets =
        b.persistent("targets", {sequences, options.context}, Element::kInt32, Role::kBatch);
    plan.losses =
        b.persistent("losses", {sequences * options.context}, b.policy().statistic, Role::kResult);
    plan.loss = b.persistent("loss", {1}, b.policy().statistic, Role::kResult);
  }
  if (options.documents) {
    const std::int64_t most = context.batch * most_documents(options.context);
    plan.documents = b.persistent("documents", {shares * options.accumulate, most + 1},
                                  Element::kInt32, Role::kBatch);
    plan.end_of_text = options.end_of_text;
  }
  if (options.precision == Precision::kFp16 && options.mode == StepMode::kFull &&
      options.loss_scaling != LossScaling::kNone) {
    plan.loss_scale =
        b.persistent("loss scale", {kLossScaleNumbers}, Element::kFp32, Role::kResult);
  }
  // `count` micro-batches of every share from `first` on, each share's added first.
  const auto micro_batches = [&](std::int64_t first, std::int64_t count) {
    for (std::int64_t share = 0; share < shares; ++share) {
      b.begin_share(share);
      for (std::int64_t i = first; i < first + count; ++i) {
        context.micro = share * options.accumulate + i;
        context.site = options.rank * shares * options.accumulate + context.micro;
        micro_batch(b, context);
      }
      b.end_share();
    }
  };
  if (reduces_each_micro_batch(options)) {
    for (std::int64_t i = 0; i < options.accumulate; ++i) {
      micro_batches(i, 1);
      b.end_micro_batch(i);
    }
  } else {
    micro_batches(0, options.accumulate);
  }
  if (!b.decodes()) mean_loss(b);
  if (Status s = b.check_frozen(); !s.ok()) return s;
  b.lay_out_arenas();
  if (options.mode == StepMode::kFull) optimizer(b);
  if (!options.freeze.empty()) drop_unread(b.plan());
  StepPlan out = b.take();
  if (!options.checkpoint.empty()) checkpoint(out, options.checkpoint);
  if (options.gpu) fuse(out);
  out.title = fmt::format("{} · batch {} x {} · {}", model.name, sequences * options.ranks,
                          options.context, to_string(options.precision));
  return out;
}

}  // namespace flashlab::train
