#pragma once

// What can be measured: attention, a weighted sum, ... A subject is a table of labels and columns
// and the words for a problem; files, baselines, tables, plots and the report walk it.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flashlab/context.h"
#include "lab/measure/measure.h"
#include "lab/results/measurement.h"

namespace flashlab::runtime {
class Communicator;
}

namespace flashlab::lab {

enum class LabelKind : std::uint8_t { kWhole, kReal, kFlag, kText };

struct LabelSpec {
  std::string_view name = {};  ///< in files: "heads_q"
  LabelKind kind = LabelKind::kWhole;
  std::string_view heading = {};  ///< in a line of `bench`: "Hq"; empty: shown only where it is set
  int width = 0;                  ///< of that cell; below 0: left-aligned
  bool required = true;           ///< every row of a file has it
  bool identifies = true;         ///< another value is another problem (not so of a name or a seed)
  std::string_view fallback = {};  ///< the value where there is none: "no", "contiguous"
  /// For text: whether a file may say this, and what it may say.
  bool (*accepts)(std::string_view) = nullptr;
  std::string_view expected = "a string or null";
};

/// Where tables show a column.
enum class Place : std::uint8_t {
  kEachPass,  ///< beside every pass
  kRow,       ///< once per row: the worst of its passes
  kDetails,   ///< where everything stands
};

struct ShownColumn {
  Column column;
  Place place = Place::kDetails;
  int width = 0;         ///< of the cell in a line of `bench`; 0: not there
  bool required = true;  ///< every row of a file has it, measured or null
};

/// A flag of `bench NAME`: its values are those of a label, and all lists make a product.
struct ProblemFlag {
  std::string_view name;      ///< "--rows"
  std::string_view label;     ///< "rows"
  std::string_view value;     ///< what stands for it in help: "N[,N]"
  std::string_view fallback;  ///< "16k"
  std::string_view help;
  std::vector<std::string> (*choices)() = nullptr;  ///< of a text; whole numbers have none
  bool bytes = false;                               ///< a whole number that may say "64MiB"
};

/// A family of problems by name: lists for some of the flags' labels.
struct ProblemSweep {
  std::string_view name;
  std::span<const std::pair<std::string_view, std::string_view>> lists;  ///< label, "1k,4k"
};

/// What a subject keeps between its problems: transports, other programs.
class BenchSession {
 public:
  virtual ~BenchSession() = default;
  virtual std::size_t results() const { return 1; }  ///< of one problem
};

struct BenchOptions {
  MeasureOptions measure;
  bool check = false;  ///< the error against fp64 too
  /// The ranks that run this together, of a subject that knows them; null: this process is alone.
  runtime::Communicator* group = nullptr;
  double timeout_s = 120;  ///< so long a rank may keep the others waiting
  /// The words of the subject's settings, by flag.
  std::vector<std::pair<std::string_view, std::vector<std::string>>> settings = {};
  BenchSession* session = nullptr;  ///< what `start` gave

  std::vector<std::string> setting(std::string_view flag) const {
    for (const auto& [name, words] : settings) {
      if (name == flag) return words;
    }
    return {};
  }
};

/// The command of a subject that is measured problem by problem.
struct SubjectBench {
  std::string_view command;  ///< "bench weighted-sum"
  std::string_view summary;  ///< one line
  std::string_view about;    ///< a paragraph
  std::span<const std::pair<std::string_view, std::string_view>> examples;  ///< command, what for
  std::span<const ProblemFlag> flags;
  std::span<const ProblemSweep> sweeps = {};
  std::string_view sweep_help = {};
  std::vector<std::string> (*sweep_names)() = nullptr;
  std::string_view protocol;  ///< in words: "the two forms take turns"
  std::size_t results = 0;    ///< of one problem; 0: as many as it gives
  /// Flags whose words are no labels: how problems run, and beside what.
  std::span<const ProblemFlag> settings = {};
  /// Made once, before the first problem, by every rank; null: nothing is kept.
  Result<std::unique_ptr<BenchSession>> (*start)(const Context& context,
                                                 const BenchOptions& options) = nullptr;
  bool knows_ranks = false;  ///< all ranks of a run measure together, and rank 0 has the results
  /// Labels are those of the flags, and "seed". What cannot run is a result with the reason.
  std::vector<Measurement> (*run)(const Context& context, const Labels& problem,
                                  const BenchOptions& options);
};

struct Subject {
  std::string_view name;     ///< in files and labels: "attention"
  std::string_view heading;  ///< of a report: "Attention"
  std::span<const LabelSpec> labels;
  std::span<const ShownColumn> columns;
  int pass_width = 8;  ///< of the cell of a pass in a line of `bench`

  std::string_view work;   ///< what a call computes: "Forward: 2 B H pairs (D + Dv)"
  std::string_view names;  ///< what the letters of a title mean

  /// One problem for a person: "fp32 · batch 1 · heads 8 · S 2048 · d 64 · causal".
  std::string (*title)(const Labels& labels, std::string_view separator);
  /// The same without the axis that lines run over; and as a part of a file name.
  std::string (*family)(const Labels& labels);
  std::string (*family_slug)(const Labels& labels);
  std::string_view axis;                ///< the whole label that lines run over: "seqlen_k"
  std::string_view axis_words;          ///< "sequence length S"
  std::string_view axis_short;          ///< "S"
  const SubjectBench* bench = nullptr;  ///< null: commands of its own measure it
};

/// All subjects; nullptr for a name that none has.
std::span<const Subject* const> subjects();
const Subject* find_subject(std::string_view name);
/// The subject of a measurement. Precondition: its name is one that find_subject knows.
const Subject& subject_of(const Measurement& measurement);

/// "fp32 · batch 1 · ...": the problem of a measurement.
std::string title_of(const Measurement& measurement, std::string_view separator = " · ");

/// Equal for measurements of the same problem: the labels that identify one.
std::string problem_key(const Measurement& measurement);

}  // namespace flashlab::lab
