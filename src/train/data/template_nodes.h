#pragma once

// A template as a tree: what template_parser.cpp reads and chat_template.cpp carries out.

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flashlab/status.h"

namespace flashlab::train {

using TemplateValue = nlohmann::ordered_json;

/// Of an expression. `text` is a name, an operator, or nothing; absent parts are null.
///   constant value · name · operator [a, b] · not [a] · choice [yes, condition, no]
///   member [of] · item [of, at] · slice [of, from, to, step] · list [...] · object: kwargs
///   call [callee, ...] · filter [of, ...] · test [of, ...]
struct Expression {
  enum class Kind {
    kConstant,
    kName,
    kOperator,
    kNot,
    kChoice,
    kMember,
    kItem,
    kSlice,
    kList,
    kCall,
    kFilter,
    kTest
  };
  Kind kind = Kind::kConstant;
  std::string text{};
  TemplateValue value{};
  std::vector<std::unique_ptr<Expression>> parts{};
  std::vector<std::pair<std::string, std::unique_ptr<Expression>>> named{};
  int line = 0;
};

using ExpressionPtr = std::unique_ptr<Expression>;

struct TemplateNode {
  enum class Kind { kText, kOutput, kIf, kFor, kSet };
  Kind kind = Kind::kText;
  std::string text{};                             ///< kText; of kSet the name
  std::string member{};                           ///< of kSet: of a namespace
  std::vector<std::string> names{};               ///< of kFor
  ExpressionPtr value{}, condition{};             ///< kFor: what is walked, and its filter
  std::vector<TemplateNode> body{}, otherwise{};  ///< kIf, kFor
};

/// Errors: kUnsupported, with the word and its line.
Result<std::vector<TemplateNode>> parse_template(std::string_view source);

/// kUnsupported: a word of Jinja that is not known here.
Status unknown_to_templates(std::string_view word, int line);

}  // namespace flashlab::train
