#include "train/run/parity.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "train/cpu/narrow.h"
#include "train/data/files.h"
#include "train/run/parameter_files.h"
#include "train/run/step_executor.h"
#include "train/step/step.h"
#include "train/weights/safetensors.h"

namespace flashlab::train {
namespace {

using Json = nlohmann::ordered_json;
using Numbers = std::vector<double>;

Numbers numbers_of(Element element, const void* data, std::int64_t count) {
  Numbers out(static_cast<std::size_t>(count));
  if (element == Element::kFp64) {
    std::memcpy(out.data(), data, out.size() * sizeof(double));
    return out;
  }
  std::vector<float> wide(out.size());
  if (element == Element::kFp32) {
    std::memcpy(wide.data(), data, wide.size() * sizeof(float));
  } else {
    cpu::widen(element, static_cast<const std::uint16_t*>(data), wide.data(), count);
  }
  std::copy(wide.begin(), wide.end(), out.begin());
  return out;
}

// max |a - b| / max |b|; infinite where the sizes differ.
double error_of(const Numbers& a, const Numbers& b) {
  if (a.size() != b.size() || a.empty()) return INFINITY;
  double worst = 0, scale = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(a[i] - b[i]);
    worst = std::isfinite(difference) ? std::max(worst, difference) : INFINITY;
    scale = std::max(scale, std::abs(b[i]));
  }
  return worst == 0 ? 0 : worst / scale;
}

class Check {
 public:
  Check(const Context& context, const std::filesystem::path& record, Precision precision)
      : context_(context), record_(record), precision_(precision) {}

  Result<ParityReport> run() {
    if (Status s = read(); !s.ok()) return s;
    if (Status s = bind(); !s.ok()) return s;
    const auto& losses = json_["losses"];
    for (std::size_t step = 0; step < losses.size(); ++step) {
      if (Status s = one_step(step); !s.ok()) return s;
      add(fmt::format("loss of step {}", step + 1), {executor_->number(executor_->plan().loss)},
          {losses[step].get<double>()}, precision_ == Precision::kBf16 ? 0.01 : tolerance("loss"));
      if (step == 0) {
        if (Status s = compare_gradients(); !s.ok()) return s;
      }
      if (precision_ == Precision::kBf16) break;  // what follows depends on what was rounded
    }
    if (precision_ != Precision::kBf16) compare_weights(losses.size());
    return std::move(report_);
  }

 private:
  Status damaged(const char* what) const {
    return Status::invalid({record_.string(), std::string("no ") + what,
                            "a record of bench/peers/train_parity.py", ""});
  }

  Status read() {
    Result<std::string> text = read_file(record_);
    if (!text.ok()) return text.status();
    json_ = base::read_json<Json>(*text);
    for (const char* key : {"model", "optimizer", "losses", "tolerance", "made_by", "batch"}) {
      if (!json_.is_object() || !json_.contains(key)) return damaged(key);
    }
    std::filesystem::path file = record_;
    Result<StoredTensors> tensors = read_safetensors(file.replace_extension(".safetensors"));
    if (!tensors.ok()) return tensors.status();
    tensors_ = std::move(*tensors);
    const bool known = precision_ == Precision::kFp64 || precision_ == Precision::kFp32 ||
                       (precision_ == Precision::kBf16 && has("gradients_bf16."));
    if (!known) return damaged(to_string(precision_));
    return has("tokens") && has("targets") ? Status() : damaged("batch");
  }

  bool has(std::string_view prefix) const {
    const auto at = tensors_.lower_bound(std::string(prefix));
    return at != tensors_.end() && at->first.starts_with(prefix);
  }

  double tolerance(const char* what) const {
    return json_["tolerance"].value(to_string(precision_), Json::object()).value(what, 0.0);
  }

  // A record's tensor in the store's type.
  Status bind() {
    Result<ModelConfig> model = parse_model(base::json_text(json_["model"]), record_.string());
    if (!model.ok()) return model.status();
    const Json& o = json_["optimizer"];
    StepOptions options;
    options.batch = json_["batch"].get<std::int64_t>();
    options.precision = precision_;
    options.optimizer = {.beta1 = o.value("beta1", 0.9),
                         .beta2 = o.value("beta2", 0.999),
                         .epsilon = o.value("epsilon", 1e-8),
                         .weight_decay = o.value("weight_decay", 0.0),
                         .max_norm = o.value("max_norm", 0.0)};
    Result<StepPlan> plan = build_step(*model, options);
    if (!plan.ok()) return plan.status();
    Result<BoundStep> bound = make_step(context_, std::move(*plan), {});
    if (!bound.ok()) return bound.status();
    parameters_ = std::move(bound->parameters);
    executor_ = std::move(bound->executor);
    report_.made_by = json_["made_by"].get<std::string>();
    report_.title =
        fmt::format("{}, {} layers, width {} · {} · {}", to_string(model->family), model->layers,
                    model->width, to_string(precision_), report_.made_by);
    StoredTensors weights;
    for (const auto& [name, tensor] : tensors_) {
      constexpr std::string_view kPrefix = "weights.";
      if (name.starts_with(kPrefix)) weights[name.substr(kPrefix.size())] = in_store_type(tensor);
    }
    if (Status s = put_weights(record_, weights, *parameters_); !s.ok()) return s;
    return executor_->push_parameters();
  }

  StoredTensor in_store_type(const StoredTensor& tensor) const {
    StoredTensor out = tensor;
    if (tensor.element == parameters_->element() || tensor.element != Element::kFp64) return out;
    out.element = Element::kFp32;
    std::vector<float> narrow;
    for (const double x : numbers(tensor)) narrow.push_back(static_cast<float>(x));
    out.bytes.assign(reinterpret_cast<const char*>(narrow.data()), narrow.size() * sizeof(float));
    return out;
  }

  static Numbers numbers(const StoredTensor& tensor) {
    return numbers_of(tensor.element, tensor.bytes.data(),
                      static_cast<std::int64_t>(tensor.bytes.size()) / size_of(tensor.element));
  }

  Status one_step(std::size_t step) {
    const StepPlan& plan = executor_->plan();
    const auto count = static_cast<std::size_t>(plan.tensor(plan.tokens).elements());
    for (const auto& [name, to] :
         {std::pair{"tokens", executor_->tokens()}, std::pair{"targets", executor_->targets()}}) {
      const Numbers all = numbers(tensors_.at(name));
      if (all.size() < (step + 1) * count) return damaged("tokens of every step");
      for (std::size_t i = 0; i < count; ++i) {
        to[i] = static_cast<std::int32_t>(all[step * count + i]);
      }
    }
    executor_->set_scalar(kLearningRate, json_["optimizer"].value("learning_rate", 1e-3));
    executor_->set_scalar(kStepIndex, static_cast<double>(step + 1));
    if (Status s = executor_->run(); !s.ok()) return s;
    if (Status s = executor_->wait(); !s.ok()) return s;
    return executor_->pull_parameters();
  }

  void add(std::string what, const Numbers& ours, const Numbers& theirs, double allowed) {
    report_.rows.push_back({std::move(what), error_of(ours, theirs), allowed});
  }

  // visit(name, ours, theirs) for every tensor of the files under `prefix`.
  template <class Visit>
  void each(const StoredTensors& ours, const char* prefix, const Visit& visit) const {
    for (const auto& [name, tensor] : ours) {
      const auto theirs = tensors_.find(prefix + name);
      visit(name, numbers(tensor), theirs == tensors_.end() ? Numbers() : numbers(theirs->second));
    }
  }

  Status compare_gradients() {
    const Result<std::byte*> gradients = executor_->gradients();
    if (!gradients.ok()) return gradients.status();
    const StoredTensors ours = stored(*parameters_, *gradients);
    if (precision_ == Precision::kBf16) {
      compare_rounded(ours);
      return {};
    }
    each(ours, "gradients.", [&](const std::string& name, const Numbers& a, const Numbers& b) {
      add("d " + name, a, b, tolerance("gradients"));
    });
    return {};
  }

  // The distance of all gradients together from the exact ones, beside the other program's: that of
  // one small tensor is chance.
  void compare_rounded(const StoredTensors& ours) {
    double here = 0, there = 0, scale = 0;
    bool whole = true;
    each(ours, "gradients.", [&](const std::string& name, const Numbers& a, const Numbers& b) {
      const auto at = tensors_.find("gradients_bf16." + name);
      const Numbers mixed = at == tensors_.end() ? Numbers() : numbers(at->second);
      whole = whole && a.size() == b.size() && mixed.size() == b.size();
      for (std::size_t i = 0; whole && i < b.size(); ++i) {
        here += (a[i] - b[i]) * (a[i] - b[i]);
        there += (mixed[i] - b[i]) * (mixed[i] - b[i]);
        scale += b[i] * b[i];
      }
    });
    const double error = whole ? std::sqrt(here / scale) : INFINITY;
    report_.rows.push_back({"all gradients", error, 2 * std::sqrt(there / scale)});
  }

  void compare_weights(std::size_t steps) {
    const StoredTensors ours = stored(*parameters_, parameters_->values());
    each(ours, "after.", [&](const std::string& name, const Numbers& a, const Numbers& b) {
      add(fmt::format("{} after {} steps", name, steps), a, b, tolerance("weights"));
    });
  }

  const Context& context_;
  std::filesystem::path record_;
  Precision precision_;
  Json json_;
  StoredTensors tensors_;
  std::unique_ptr<ParameterStore> parameters_;
  std::unique_ptr<StepExecutor> executor_;
  ParityReport report_;
};

}  // namespace

bool ParityReport::ok() const {
  return !rows.empty() &&
         std::all_of(rows.begin(), rows.end(), [](const ParityRow& row) { return row.ok(); });
}

const ParityRow& ParityReport::worst() const {
  const auto share = [](const ParityRow& row) {
    return row.error == 0 ? 0 : row.allowed > 0 ? row.error / row.allowed : INFINITY;
  };
  return *std::max_element(rows.begin(), rows.end(), [&](const ParityRow& a, const ParityRow& b) {
    return share(a) < share(b);
  });
}

Result<ParityReport> check_parity(const Context& context, const std::filesystem::path& record,
                                  Precision precision) {
  try {
    return Check(context, record, precision).run();
  } catch (const Json::exception& error) {
    return Status::invalid({record.string(), error.what(),
                            "a record of bench/peers/train_parity.py", "the file is damaged"});
  }
}

}  // namespace flashlab::train
