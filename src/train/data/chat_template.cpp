#include "train/data/chat_template.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <map>

#include "base/json.h"
#include "train/data/files.h"
#include "train/data/template_nodes.h"

namespace flashlab::train {
namespace {

using Value = TemplateValue;
using Kind = Expression::Kind;

// What no name has: neither null nor anything else.
Value undefined() {
  return Value(Value::value_t::discarded);
}

bool truth(const Value& value) {
  if (value.is_discarded() || value.is_null()) return false;
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number()) return value != 0;
  if (value.is_string()) return !value.get_ref<const std::string&>().empty();
  return !value.empty();
}

std::string text_of(const Value& value) {
  if (value.is_discarded()) return {};
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
  return value.is_null() ? "None" : base::json_text(value);
}

std::string stripped(std::string text, std::string_view letters, bool left, bool right) {
  if (right) text.erase(text.find_last_not_of(letters) + 1);
  if (left) text.erase(0, std::min(text.find_first_not_of(letters), text.size()));
  return text;
}

Value split(const std::string& text, const std::string& by) {
  Value out = Value::array();
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = by.empty() ? std::string::npos : text.find(by, at);
    out.push_back(text.substr(at, end == std::string::npos ? end : end - at));
    if (end == std::string::npos) break;
    at = end + by.size();
  }
  return out;
}

std::string replaced(const std::string& text, const std::string& from, const std::string& to) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t found = from.empty() ? std::string::npos : text.find(from, at);
    out += text.substr(at, found == std::string::npos ? found : found - at);
    if (found == std::string::npos) break;
    out += to;
    at = found + from.size();
  }
  return out;
}

class Renderer {
 public:
  explicit Renderer(std::map<std::string, Value> words) { scopes_.push_back(std::move(words)); }

  Result<std::string> render(const std::vector<TemplateNode>& nodes) {
    run(nodes);
    if (!status_.ok()) return status_;
    return out_;
  }

 private:
  Value fail(std::string_view word, int line) {
    if (status_.ok()) status_ = unknown_to_templates(word, line);
    return undefined();
  }

  Value* find(const std::string& name) {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      if (const auto at = scope->find(name); at != scope->end()) return &at->second;
    }
    return nullptr;
  }

  void run(const std::vector<TemplateNode>& nodes) {
    for (const TemplateNode& node : nodes) {
      if (!status_.ok()) return;
      switch (node.kind) {
        case TemplateNode::Kind::kText:
          out_ += node.text;
          break;
        case TemplateNode::Kind::kOutput:
          out_ += text_of(value_of(*node.value));
          break;
        case TemplateNode::Kind::kIf:
          run(truth(value_of(*node.condition)) ? node.body : node.otherwise);
          break;
        case TemplateNode::Kind::kFor:
          walk(node);
          break;
        case TemplateNode::Kind::kSet:
          set(node);
          break;
      }
    }
  }

  void set(const TemplateNode& node) {
    Value value = value_of(*node.value);
    if (node.member.empty()) {
      scopes_.back()[node.text] = std::move(value);
    } else if (Value* of = find(node.text); of != nullptr && of->is_object()) {
      (*of)[node.member] = std::move(value);
    } else {
      fail(node.text + "." + node.member, node.value->line);
    }
  }

  void walk(const TemplateNode& node) {
    const Value all = value_of(*node.value);
    std::vector<Value> items;
    if (all.is_object()) {
      for (const auto& [key, value] : all.items()) items.emplace_back(key);
    } else if (all.is_array()) {
      items.assign(all.begin(), all.end());
    } else if (truth(all)) {
      fail("a loop over no list", node.value->line);
    }
    const auto name = [&](const Value& item) {
      for (std::size_t i = 0; i < node.names.size(); ++i) {
        const bool part = node.names.size() > 1 && item.is_array() && i < item.size();
        scopes_.back()[node.names[i]] = part ? item[i] : item;
      }
    };
    scopes_.emplace_back();
    if (node.condition) {
      std::erase_if(items, [&](const Value& item) {
        name(item);
        return !truth(value_of(*node.condition));
      });
    }
    for (std::size_t i = 0; i < items.size() && status_.ok(); ++i) {
      scopes_.back().clear();
      name(items[i]);
      Value loop = {{"index", i + 1},
                    {"index0", i},
                    {"first", i == 0},
                    {"last", i + 1 == items.size()},
                    {"length", items.size()}};
      if (i > 0) loop["previtem"] = items[i - 1];
      if (i + 1 < items.size()) loop["nextitem"] = items[i + 1];
      scopes_.back()["loop"] = std::move(loop);
      run(node.body);
    }
    scopes_.pop_back();
    if (items.empty()) run(node.otherwise);
  }

  Value value_of(const Expression& e) {
    if (!status_.ok()) return undefined();
    switch (e.kind) {
      case Kind::kConstant:
        return e.value;
      case Kind::kName: {
        const Value* found = find(e.text);
        return found == nullptr ? undefined() : *found;
      }
      case Kind::kNot:
        return !truth(value_of(*e.parts[0]));
      case Kind::kChoice:
        if (truth(value_of(*e.parts[1]))) return value_of(*e.parts[0]);
        return e.parts[2] ? value_of(*e.parts[2]) : undefined();
      case Kind::kList: {
        Value out = Value::array();
        for (const ExpressionPtr& each : e.parts) out.push_back(value_of(*each));
        return out;
      }
      case Kind::kOperator:
        return operation(e);
      case Kind::kMember:
        return member(value_of(*e.parts[0]), e.text);
      case Kind::kItem:
        return item(value_of(*e.parts[0]), value_of(*e.parts[1]));
      case Kind::kSlice:
        return slice(e);
      case Kind::kCall:
        return call(e);
      case Kind::kFilter:
        return filter(e);
      case Kind::kTest:
        return test(e);
    }
    return undefined();
  }

  static Value member(const Value& of, const std::string& name) {
    return of.is_object() && of.contains(name) ? of[name] : undefined();
  }

  static Value item(const Value& of, const Value& at) {
    if (at.is_string()) return member(of, at.get<std::string>());
    if (!at.is_number_integer()) return undefined();
    const auto pick = [&](std::size_t size) {
      const auto given = at.get<std::int64_t>();
      return given < 0 ? given + static_cast<std::int64_t>(size) : given;
    };
    if (of.is_array()) {
      const std::int64_t place = pick(of.size());
      const bool inside = place >= 0 && place < std::ssize(of);
      return inside ? of[static_cast<std::size_t>(place)] : undefined();
    }
    if (!of.is_string()) return undefined();
    const std::string text = of.get<std::string>();
    const std::int64_t place = pick(text.size());
    const bool inside = place >= 0 && place < std::ssize(text);
    return inside ? Value(text.substr(static_cast<std::size_t>(place), 1)) : undefined();
  }

  // As Python's, of lists and texts.
  Value slice(const Expression& e) {
    const Value of = value_of(*e.parts[0]);
    const auto number = [&](std::size_t part) -> std::optional<std::int64_t> {
      if (!e.parts[part]) return std::nullopt;
      const Value value = value_of(*e.parts[part]);
      return value.is_number_integer() ? std::optional(value.get<std::int64_t>()) : std::nullopt;
    };
    const std::int64_t step = number(3).value_or(1);
    const std::string text = of.is_string() ? of.get<std::string>() : std::string();
    const std::int64_t size = of.is_string() ? std::ssize(text) : std::ssize(of);
    if (step == 0 || !(of.is_string() || of.is_array())) return fail("a slice", e.line);
    const auto bound = [&](std::optional<std::int64_t> given, std::int64_t fallback) {
      if (!given) return fallback;
      const std::int64_t place = *given < 0 ? *given + size : *given;
      return step > 0 ? std::clamp<std::int64_t>(place, 0, size)
                      : std::clamp<std::int64_t>(place, -1, size - 1);
    };
    const std::int64_t from = bound(number(1), step > 0 ? 0 : size - 1);
    const std::int64_t to = bound(number(2), step > 0 ? size : -1);
    Value out = of.is_string() ? Value("") : Value::array();
    for (std::int64_t i = from; step > 0 ? i < to : i > to; i += step) {
      const auto at = static_cast<std::size_t>(i);
      if (of.is_string()) {
        out.get_ref<std::string&>() += text[at];
      } else {
        out.push_back(of[at]);
      }
    }
    return out;
  }

  Value operation(const Expression& e) {
    if (e.text == "or" || e.text == "and") {
      Value left = value_of(*e.parts[0]);
      return truth(left) == (e.text == "or") ? left : value_of(*e.parts[1]);
    }
    const Value left = value_of(*e.parts[0]), right = value_of(*e.parts[1]);
    if (e.text == "==" || e.text == "!=") return equal(left, right) == (e.text == "==");
    if (e.text == "in" || e.text == "not in") return contains(right, left) == (e.text == "in");
    if (e.text == "~") return text_of(left) + text_of(right);
    if (e.text == "+" && left.is_string() && right.is_string()) {
      return text_of(left) + text_of(right);
    }
    if (e.text == "+" && left.is_array() && right.is_array()) {
      Value out = left;
      out.insert(out.end(), right.begin(), right.end());
      return out;
    }
    if (left.is_string() && right.is_string()) {
      if (e.text == "<") return text_of(left) < text_of(right);
      if (e.text == ">") return text_of(left) > text_of(right);
    }
    if (!left.is_number_integer() || !right.is_number_integer()) return fail(e.text, e.line);
    const auto a = left.get<std::int64_t>(), b = right.get<std::int64_t>();
    if (e.text == "+") return a + b;
    if (e.text == "-") return a - b;
    if (e.text == "*") return a * b;
    if (e.text == "<") return a < b;
    if (e.text == ">") return a > b;
    if (e.text == "<=") return a <= b;
    if (e.text == ">=") return a >= b;
    if ((e.text == "//" || e.text == "%") && a >= 0 && b > 0) return e.text == "%" ? a % b : a / b;
    return fail(e.text, e.line);
  }

  static bool equal(const Value& a, const Value& b) {
    if (a.is_discarded() || b.is_discarded()) return a.is_discarded() && b.is_discarded();
    return a == b;
  }

  static bool contains(const Value& all, const Value& one) {
    if (all.is_string()) return text_of(all).find(text_of(one)) != std::string::npos;
    if (all.is_object()) return one.is_string() && all.contains(one.get<std::string>());
    return all.is_array() && std::ranges::find(all, one) != all.end();
  }

  Value call(const Expression& e) {
    const Expression& callee = *e.parts[0];
    std::vector<Value> given;
    for (std::size_t i = 1; i < e.parts.size(); ++i) given.push_back(value_of(*e.parts[i]));
    if (!status_.ok()) return undefined();
    if (callee.kind == Kind::kMember) {
      return method(value_of(*callee.parts[0]), callee.text, given, e.line);
    }
    if (callee.text == "namespace" || callee.text == "dict") {
      Value out = Value::object();
      for (const auto& [name, value] : e.named) out[name] = value_of(*value);
      return out;
    }
    if (callee.text == "raise_exception" && given.size() == 1) {
      status_ = Status::invalid({"chat template", text_of(given[0]), "turns that it takes", ""});
      return undefined();
    }
    if (callee.text == "strftime_now" && given.size() == 1) return now(text_of(given[0]));
    if (callee.text == "range" && !given.empty() && given.size() <= 2) {
      Value out = Value::array();
      const auto end = given.back().is_number_integer() ? given.back().get<std::int64_t>() : 0;
      const std::int64_t from =
          given.size() == 2 && given[0].is_number_integer() ? given[0].get<std::int64_t>() : 0;
      for (std::int64_t i = from; i < std::min<std::int64_t>(end, from + 100000); ++i) {
        out.push_back(i);
      }
      return out;
    }
    return fail(fmt::format("\"{}()\"", callee.text), e.line);
  }

  static Value now(const std::string& form) {
    const std::time_t seconds = std::time(nullptr);
    std::tm parts{};
    ::localtime_r(&seconds, &parts);
    char text[128];
    return std::string(text, std::strftime(text, sizeof text, form.c_str(), &parts));
  }

  Value method(const Value& of, const std::string& name, const std::vector<Value>& given,
               int line) {
    const auto argument = [&](std::size_t i, const char* fallback) {
      return i < given.size() ? text_of(given[i]) : std::string(fallback);
    };
    if (of.is_object() && name == "items") {
      Value out = Value::array();
      for (const auto& [key, value] : of.items()) out.push_back(Value::array({key, value}));
      return out;
    }
    if (of.is_object() && name == "get" && !given.empty()) {
      Value found = member(of, text_of(given[0]));
      if (!found.is_discarded()) return found;
      return given.size() > 1 ? given[1] : Value(nullptr);
    }
    if (!of.is_string()) return fail(fmt::format("\".{}()\"", name), line);
    const std::string text = of.get<std::string>(), blank = argument(0, " \t\n\r\f\v");
    if (name == "strip") return stripped(text, blank, true, true);
    if (name == "lstrip") return stripped(text, blank, true, false);
    if (name == "rstrip") return stripped(text, blank, false, true);
    if (name == "startswith") return text.starts_with(argument(0, ""));
    if (name == "endswith") return text.ends_with(argument(0, ""));
    if (name == "split" && given.size() == 1) return split(text, text_of(given[0]));
    if (name == "replace" && given.size() == 2) {
      return replaced(text, text_of(given[0]), text_of(given[1]));
    }
    return fail(fmt::format("\".{}()\"", name), line);
  }

  Value filter(const Expression& e) {
    const Value of = value_of(*e.parts[0]);
    std::vector<Value> given;
    for (std::size_t i = 1; i < e.parts.size(); ++i) given.push_back(value_of(*e.parts[i]));
    if (!status_.ok()) return undefined();
    if (e.text == "trim") return stripped(text_of(of), " \t\n\r\f\v", true, true);
    if (e.text == "length" || e.text == "count") {
      return of.is_string() ? static_cast<std::int64_t>(text_of(of).size())
                            : static_cast<std::int64_t>(of.size());
    }
    if (e.text == "default" && !given.empty()) return of.is_discarded() ? given[0] : of;
    if (e.text == "string") return text_of(of);
    if (e.text == "list" || e.text == "safe") return of;
    if (e.text == "first" || e.text == "last") return item(of, e.text == "first" ? 0 : -1);
    // Lists and objects have blanks in them as Python writes them.
    const bool plain = of.is_primitive() && !of.is_discarded();
    if (e.text == "tojson" && plain) return base::json_text(of);
    if (e.text == "join" && of.is_array()) {
      std::string out;
      for (const Value& each : of) {
        if (!out.empty() && !given.empty()) out += text_of(given[0]);
        out += text_of(each);
      }
      return out;
    }
    return fail(fmt::format("\"|{}\"", e.text), e.line);
  }

  Value test(const Expression& e) {
    const Value of = value_of(*e.parts[0]);
    if (e.text == "defined") return !of.is_discarded();
    if (e.text == "undefined") return of.is_discarded();
    if (e.text == "none") return of.is_null();
    if (e.text == "string") return of.is_string();
    if (e.text == "mapping") return of.is_object();
    if (e.text == "number") return of.is_number();
    if (e.text == "boolean") return of.is_boolean();
    if (e.text == "true") return of == true;
    if (e.text == "false") return of == false;
    if (e.text == "iterable" || e.text == "sequence") {
      return of.is_string() || of.is_array() || of.is_object();
    }
    return fail(fmt::format("\"is {}\"", e.text), e.line);
  }

  std::vector<std::map<std::string, Value>> scopes_;
  std::string out_;
  Status status_;
};

}  // namespace

Result<ChatTemplate> read_chat_template(const std::filesystem::path& folder) {
  const Result<std::string> config = read_file(folder / "tokenizer_config.json");
  const auto json = base::read_json(config.ok() ? *config : std::string());
  ChatTemplate out;
  const auto text = [&](const char* name) -> std::string {
    if (!json.is_object() || !json.contains(name)) return {};
    const auto& value = json[name];
    // A word may stand among its properties, one of several templates beside its name.
    if (value.is_object() && value.contains("content") && value["content"].is_string()) {
      return value["content"];
    }
    if (value.is_array()) {
      for (const auto& each : value) {
        const bool usual = each.is_object() && each.contains("name") && each["name"] == "default";
        if (usual && each.contains("template") && each["template"].is_string()) {
          return each["template"];
        }
      }
    }
    return value.is_string() ? value.get<std::string>() : std::string();
  };
  out.words = {text("bos_token"), text("eos_token")};
  const Result<std::string> file = read_file(folder / "chat_template.jinja");
  out.source = file.ok() ? *file : text("chat_template");
  if (!out.source.empty()) return out;
  return Status::invalid({folder.string(), "no chat template",
                          "chat_template.jinja, or chat_template in tokenizer_config.json",
                          "a model that was not taught turns has none; leave --chat out"});
}

Result<std::string> render_chat(std::string_view source, const std::vector<ChatMessage>& messages,
                                const ChatWords& words) {
  const Result<std::vector<TemplateNode>> nodes = parse_template(source);
  if (!nodes.ok()) return nodes.status();
  Value all = Value::array();
  for (const ChatMessage& message : messages) {
    all.push_back({{"role", message.role}, {"content", message.content}});
  }
  std::map<std::string, Value> known = {{"messages", std::move(all)},
                                        {"add_generation_prompt", true},
                                        {"tools", nullptr},
                                        {"documents", nullptr}};
  if (!words.bos_token.empty()) known["bos_token"] = words.bos_token;
  if (!words.eos_token.empty()) known["eos_token"] = words.eos_token;
  return Renderer(std::move(known)).render(*nodes);
}

}  // namespace flashlab::train
