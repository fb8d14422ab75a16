// Chat templates, against what jinja2 3.1 makes of them with the settings of transformers
// (trim_blocks, lstrip_blocks).

#include <gtest/gtest.h>

#include <unistd.h>

#include <filesystem>

#include "train/data/chat_template.h"
#include "train/data/files.h"

namespace flashlab::train {
namespace {

const std::vector<std::vector<ChatMessage>> kChats = {
    {{"user", " Who are you? "}},
    {{"system", " Be brief. "}, {"user", "Hi"}},
    {{"user", "a"}, {"assistant", "<think>\nhm\n</think>\n\nyes"}},
};

// `wanted`: of each chat, or the template's refusal behind a '!'.
void expect_chats(const char* source, const std::vector<std::string>& wanted) {
  for (std::size_t i = 0; i < kChats.size(); ++i) {
    const Result<std::string> got = render_chat(source, kChats[i], {"<b>", "<e>"});
    if (wanted[i].starts_with('!')) {
      EXPECT_NE(got.status().message().find(wanted[i].substr(1)), std::string::npos);
    } else {
      ASSERT_TRUE(got.ok()) << got.status().message();
      EXPECT_EQ(*got, wanted[i]);
    }
  }
}

TEST(TrainChat, Marks) {
  // clang-format off
  const char* const source = "{{ bos_token }}{% for m in messages %}{% if loop.first and m"
      "['role'] != 'system' %}{{ '<s>Short answers.</s>\\n' }}{% end"
      "if %}{{ '<' + m['role'] + '>' + m['content'] | trim + eos_to"
      "ken }}{% endfor %}{% if add_generation_prompt %}{{ '<assista"
      "nt>' }}{% endif %}";
  // clang-format on
  expect_chats(source,
               {"<b><s>Short answers.</s>\n<user>Who are you?<e><assistant>",
                "<b><system>Be brief.<e><user>Hi<e><assistant>",
                "<b><s>Short "
                "answers.</s>\n<user>a<e><assistant><think>\nhm\n</think>\n\nyes<e><assistant>"});
}

TEST(TrainChat, System) {
  // clang-format off
  const char* const source = R"({{- bos_token }}
{#- What the person set up comes first. #}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = "" %}
{%- endif %}
{{- "[system]" + system + "\n" }}
{%- if tools is not none %}
    {{- tools | tojson }}
{%- endif %}
{%- for m in messages %}
    {%- if not (m.role == 'tool' or 'calls' in m) %}
        {{- '[' + m['role'] + ']' + m['content'] | trim + '\n' }}
    {%- elif m.calls | length != 1 %}
        {{- raise_exception("one call at a time") }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '[assistant]' }}
{%- endif %}
)";
  // clang-format on
  expect_chats(source,
               {"<b>[system]\n[user]Who are you?\n[assistant]",
                "<b>[system]Be brief.\n[user]Hi\n[assistant]",
                "<b>[system]\n[user]a\n[assistant]<think>\nhm\n</think>\n\nyes\n[assistant]"});
}

TEST(TrainChat, Thoughts) {
  // clang-format off
  const char* const source = R"({%- set ns = namespace(open=true, last=messages|length - 1) %}
{%- for m in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.open and m.role == "user" and m.content is string and
        not(m.content.startswith('<r>') and m.content.endswith('</r>')) %}
        {%- set ns.open = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for m in messages %}
    {%- set content = m.content if m.content is string else '' %}
    {%- if m.role == "assistant" %}
        {%- if '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\n')
                .split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {{- '(' ~ loop.index0 ~ (':' ~ thought
            if loop.index0 > ns.last and thought is defined else '') ~ ')' ~ content }}
    {%- else %}
        {{- m.role + ':' + content + '\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- 'assistant:' }}
    {%- if thinking is defined and thinking is false %}
        {{- '<think></think>' }}
    {%- endif %}
{%- endif %})";
  // clang-format on
  expect_chats(source, {"user: Who are you? \nassistant:",
                        "system: Be brief. \nuser:Hi\nassistant:", "user:a\n(1:hm)yesassistant:"});
}

TEST(TrainChat, Turns) {
  // clang-format off
  const char* const source = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('"
      "no system turn here') }}{% endif %}{% for m in messages %}{%"
      " if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ rai"
      "se_exception('turns must alternate') }}{% endif %}{% set who"
      " = 'model' if m['role'] == 'assistant' else m['role'] %}{{ '"
      "<' + who + '>' + m['content'] }}{% endfor %}<model>";
  // clang-format on
  expect_chats(source, {"<user> Who are you? <model>", "!no system turn here",
                        "<user>a<model><think>\nhm\n</think>\n\nyes<model>"});
}

TEST(TrainChat, Lines) {
  // clang-format off
  const char* const source = R"(Head
  {% for m in messages if m.role != 'system' %}
   {% if loop.first %}
 first {{ loop.index }}/{{ loop.length }} {{ m.content[1:3] }} {{ m.content[::-1] }}
   {% else %}
 then {{ 'a' ~ 3 + 4 * 2 ~ 'b' if true else 'c' }} {{ -1 }} {{ 7 // 2 }} {{
      1 <= 2 and not 'x' in 'yz' }}
   {% endif %}
  {% else %}
 none
  {% endfor %}
{# gone #}
tail {{ [1, 'x'] | join('+') }} {{ missing | default('no') }} {% set a = 'q' %}{{
  a.replace('q', 'rr') }}
)";
  // clang-format on
  expect_chats(source, {"Head\n first 1/1 Wh  ?uoy era ohW \ntail 1+x no rr",
                        "Head\n first 1/1 i iH\ntail 1+x no rr",
                        "Head\n first 1/2  a\n then a38b -1 3 True\ntail 1+x no rr"});
}

TEST(TrainChat, WhatIsNotKnownIsRefusedByName) {
  const std::pair<const char*, const char*> kCases[] = {
      {"a\n{% macro turn(m) %}{% endmacro %}", "\"macro\" in line 2"},
      {"{{ messages | map(attribute='role') }}", "\"|map\" in line 1"},
      {"\n\n{{ messages[0].content.title() }}", "\".title()\" in line 3"},
      {"{{ cycler('a') }}", "\"cycler()\""},
      {"{% if messages is odd %}{% endif %}", "\"is odd\""},
      {"{% for m in messages %}", "an end where endfor should stand"},
      {"{{ messages", "without its end"},
      {"{{ 1 + 'a' }}", "+ in line 1"},
      {"{{ messages | tojson }}", "\"|tojson\""},
      {"{% endif %}", "endif"}};
  for (const auto& [source, part] : kCases) {
    const Status refused = render_chat(source, kChats[0], {}).status();
    EXPECT_EQ(refused.code(), StatusCode::kUnsupported) << source;
    EXPECT_NE(refused.message().find(part), std::string::npos) << refused.message();
  }
}

// Each of these would call the reader, or what removes its tree, as often as it has levels.
TEST(TrainChat, AnyDepthIsRefusedOrRead) {
  const auto times = [](const char* text) {
    std::string out;
    for (int i = 0; i < 200'000; ++i) out += text;
    return out;
  };
  for (const std::string& inside :
       {times("("), times("not "), times("- "), "a" + times(".b"), "1" + times("+1")}) {
    const Status refused = render_chat("{{ " + inside + " }}", {}, {}).status();
    EXPECT_NE(refused.message().find("a tag of"), std::string::npos) << inside.substr(0, 9);
  }
  for (const std::string& text :
       {times("{% if a %}"), "{% if a %}" + times("{% elif a %}"), times("{% for a in a %}")}) {
    const Status refused = render_chat(text, {}, {}).status();
    EXPECT_NE(refused.message().find("inside others"), std::string::npos) << text.substr(0, 9);
  }
}

TEST(TrainChat, StandsInEitherFile) {
  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) / ("chat_" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  EXPECT_NE(read_chat_template(folder).status().message().find("no chat template"),
            std::string::npos);
  const char* config =
      R"({"bos_token": {"content": "<b>"}, "eos_token": "<e>",
          "chat_template": [{"name": "tools", "template": "t"},
                            {"name": "default", "template": "d"}]})";
  ASSERT_TRUE(write_file(folder / "tokenizer_config.json", config).ok());
  const Result<ChatTemplate> read = read_chat_template(folder);
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->source + read->words.bos_token + read->words.eos_token, "d<b><e>");
  ASSERT_TRUE(write_file(folder / "chat_template.jinja", "file").ok());
  EXPECT_EQ(read_chat_template(folder)->source, "file");
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace flashlab::train
