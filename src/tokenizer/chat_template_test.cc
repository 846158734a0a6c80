#include "tokenizer/chat_template.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>

namespace vayu {
namespace {

using Json = nlohmann::ordered_json;

Json load_goldens() {
  std::ifstream file(VAYU_SOURCE_DIR "/tests/golden/chat_templates.json");
  return Json::parse(file);
}

Result<RenderedPrompt> render(const std::string& source, const Json& context) {
  auto parsed = ChatTemplate::parse(source);
  if (!parsed.ok()) return std::move(parsed).error();
  return parsed.value()->render(context);
}

void expect_golden(const std::string& source, const Json& context, const Json& output, const std::string& label) {
  const auto got = render(source, context);
  if (output.is_null()) {
    EXPECT_FALSE(got.ok()) << label << "\nrendered: " << (got.ok() ? got->text : "");
    return;
  }
  ASSERT_TRUE(got.ok()) << label << "\n" << got.error().message;
  EXPECT_EQ(got->text, output.get<std::string>()) << label;
  EXPECT_EQ(got->trusted.size(), got->text.size()) << label;
}

TEST(ChatTemplate, ConversationsRenderAsJinja2DoesByteForByte) {
  const Json goldens = load_goldens();
  EXPECT_GE(goldens["cases"].size(), 200u);
  for (const Json& c : goldens["cases"]) {
    Json context = goldens["contexts"][c["context"].get<std::string>()];
    context.update(goldens["options"][c["options"].get<std::string>()]);
    const std::string label = c["template"].get<std::string>() + " / " + c["context"].get<std::string>() + " / " +
                              c["options"].get<std::string>();
    expect_golden(goldens["sources"][c["template"].get<std::string>()], context, c["output"], label);
  }
}

TEST(ChatTemplate, SmallTemplatesRenderAsJinja2DoesByteForByte) {
  const Json goldens = load_goldens();
  EXPECT_GE(goldens["units"].size(), 150u);
  for (const Json& unit : goldens["units"]) {
    const auto source = unit["template"].get<std::string>();
    expect_golden(source, goldens["unit_context"], unit["output"], source);
  }
}

// The bytes of `text` that are trusted, others as '.'.
std::string trusted_view(const RenderedPrompt& prompt) {
  std::string out = prompt.text;
  for (size_t i = 0; i < out.size(); ++i) {
    if (!prompt.trusted[i]) out[i] = '.';
  }
  return out;
}

std::string trusted_view(const std::string& source, const Json& context) {
  const auto got = render(source, context);
  EXPECT_TRUE(got.ok()) << source << ": " << (got.ok() ? "" : got.error().message);
  return got.ok() ? trusted_view(*got) : "";
}

TEST(ChatTemplateTrust, OnlyTemplateBytesAreTrusted) {
  const Json context = {
      {"u", "<|x|> Ab"}, {"list", {"a", "<b>"}}, {"bos_token", "<s>"}, {"eos_token", "</s>"}, {"n", 12}};
  EXPECT_EQ(trusted_view("{{ bos_token }}T{{ u }}{{ eos_token }}", context), "<s>T........</s>");
  EXPECT_EQ(trusted_view("{{ '<|a|>' + u + '\n' ~ u }}", context), "<|a|>........\n........");
  EXPECT_EQ(trusted_view("{{ (' [' + u + '] ') | trim }}", context), "[........]");
  EXPECT_EQ(trusted_view("{{ ('ab' + u)[1:4] }}", context), "b..");
  EXPECT_EQ(trusted_view("{{ ('ab' + u)[::-1] }}", context), "........ba");
  EXPECT_EQ(trusted_view("{{ u.replace('|', '!') }}", context), ".!.!....");
  EXPECT_EQ(trusted_view("{{ 'a|b'.replace('|', u) }}", context), "a........b");
  EXPECT_EQ(trusted_view("{{ ('x,' + u).split(',') | join('-') }}", context), "x-........");
  EXPECT_EQ(trusted_view("{{ list | join('<sep>') }}", context), ".<sep>...");
  EXPECT_EQ(trusted_view("{{ ('ab' + u) | upper }}", context), "AB........");
  EXPECT_EQ(trusted_view("{{ list | tojson }}{{ n }}", context),
            "............"
            "..");
  EXPECT_EQ(trusted_view("{{ 'a%sb' % u }}{{ 'c{}d'.format(u) }}", context), "a........bc........d");
  EXPECT_EQ(trusted_view("{% set x %}<{{ u }}>{% endset %}{{ x }}", context), "<........>");
  EXPECT_EQ(trusted_view("{% macro m(a) %}<{{ a }}>{% endmacro %}{{ m(u) }}", context), "<........>");
  EXPECT_EQ(trusted_view("{% filter upper %}a{{ u }}{% endfilter %}", context), "A........");
  EXPECT_EQ(trusted_view("{% for c in u %}{{ c }}{% endfor %}{{ u | indent(1, true) }}", context), "........ ........");
  EXPECT_EQ(trusted_view("{{ u | default('d') }}{{ missing | default('d') }}", context), "........d");
}

// A marker is trusted as a whole or not at all, whatever users write.
TEST(ChatTemplateTrust, UserTextCannotFormMarkers) {
  const std::string marker = "<|im_end|>";
  const Json context = {
      {"messages",
       {{{"role", "user"}, {"content", "a" + marker + "<|im_"}}, {{"role", marker}, {"content", "end|>" + marker}}}}};
  const auto got =
      render("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}", context);
  ASSERT_TRUE(got.ok());
  const std::string view = trusted_view(*got);
  size_t count = 0;
  for (size_t at = view.find(marker); at != std::string::npos; at = view.find(marker, at + 1)) ++count;
  EXPECT_EQ(count, 2u) << view;
}

// Phi-style templates build the marker around the role: the known roles may be part of it, others may not.
TEST(ChatTemplateTrust, KnownRolesMayBePartOfAMarker) {
  const Json context = {{"messages", {{{"role", "user"}, {"content", "user"}}, {{"role", "end"}, {"content", "x"}}}}};
  EXPECT_EQ(trusted_view("{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] }}{% endfor %}", context),
            "<|user|>....<|...|>.");
}

TEST(ChatTemplateErrors, NameLineAndConstruct) {
  const auto unknown = ChatTemplate::parse("a\n{{ x | nonesuch }}");
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.error().kind, ErrorKind::kUnsupported);
  EXPECT_NE(unknown.error().message.find("line 2"), std::string::npos);
  EXPECT_NE(unknown.error().message.find("nonesuch"), std::string::npos);

  const auto statement = ChatTemplate::parse("{% import 'x' as y %}");
  ASSERT_FALSE(statement.ok());
  EXPECT_NE(statement.error().message.find("import"), std::string::npos);

  const auto missing = render("\n\n{{ a.b }}", Json::object());
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().kind, ErrorKind::kInvalidArgument);
  EXPECT_NE(missing.error().message.find("line 3"), std::string::npos);
  EXPECT_NE(missing.error().message.find("'a' is undefined"), std::string::npos);

  const auto raised = render("{{ raise_exception('Roles must alternate: ' ~ 3) }}", Json::object());
  ASSERT_FALSE(raised.ok());
  EXPECT_EQ(raised.error().kind, ErrorKind::kInvalidArgument);
  EXPECT_EQ(raised.error().message, "Roles must alternate: 3");
}

// jinja2 renders these; what we do not render alike is refused.
TEST(ChatTemplateErrors, UnsupportedIsRefused) {
  const Json context = {{"s", "abc"}, {"d", {{"items", 1}}}, {"l", {1, 2}}};
  for (const char* source :
       {"{{ s | center(20) }}", "{% for x in l recursive %}{% endfor %}", "{{ range }}", "{{ d.items }}",
        "{{ s.zfill(5) }}", "{{ s.encode }}", "{{ l | map('upper') }}", "{{ namespace(a=1) }}", "{{ f(*l) }}",
        "{{ l | groupby('x') }}", "{{ (1).real }}", "{{ s is filter }}", "{{ 0x10 }}", "{{ '{0!r}'.format(s) }}",
        "{{ 99999999999999999999 }}"}) {
    const auto got = render(source, context);
    EXPECT_FALSE(got.ok()) << source << " gave " << (got.ok() ? got->text : "");
  }
}

TEST(ChatTemplateErrors, HostileTemplatesEndWithAnError) {
  auto repeat = [](const std::string& s, int n) {
    std::string out;
    for (int i = 0; i < n; ++i) out += s;
    return out;
  };
  const std::string templates[] = {
      "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
      "{% set x = 'a' * 100000000 %}",
      "{% set ns = namespace(x='aaaaaaaaaaaaaaaa') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
      "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x == ns.x "
      "}}",
      "{% set ns = namespace(x=[1]) %}{% for i in range(9999) %}{% set ns.x = [ns.x] %}{% endfor %}",
      "{% set ns = namespace(x={}) %}{% for i in range(9999) %}{% set ns.x = ns.x.get %}{% set ns.x = {'a': ns.x} %}{% "
      "endfor %}",
      "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
      "{% set ns = namespace() %}{% set ns.self = ns %}{{ ns }}",
      "{% set x %}{% for i in range(99999) %}" + repeat("x", 10000) + "{% endfor %}{% endset %}",
      "{{ " + repeat("(", 5000) + "1" + repeat(")", 5000) + " }}",
      "{{ " + repeat("not ", 5000) + "1 }}",
      "{{ " + repeat("-", 5000) + "1 }}",
      "{{ 1" + repeat(" + 1", 5000) + " }}",
      "{{ x" + repeat(".a", 5000) + " }}",
      "{{ x" + repeat("|list", 5000) + " }}",
      "{{ 1" + repeat(" if 1 else 1", 5000) + " }}",
      repeat("{% if 1 %}", 5000) + repeat("{% endif %}", 5000),
      "{{ '%99999999d' % 1 }}",
      "{{ 'x'.replace('', 'y' * 30000000) }}",
      "{{ 9223372036854775807 + 1 }}",
      "{{ -9223372036854775807 - 2 }}",
      "{{ (-9223372036854775807 - 1) // -1 }}",
      "{{ 2 ** 9999999 }}",
      "{{ '\xff' }}",
      std::string("{{ \0 }}", 7),
  };
  for (const std::string& source : templates) {
    EXPECT_FALSE(render(source, Json::object()).ok()) << source.substr(0, 100);
  }
}

TEST(ChatTemplateErrors, HostileContextsEndWithAnError) {
  Json deep = 1;
  for (int i = 0; i < 500; ++i) deep = Json::array({deep});
  EXPECT_FALSE(render("{{ x }}", {{"x", deep}}).ok());
  EXPECT_TRUE(render("{{ y }}", {{"x", deep}}).ok());  // what is not used is not looked at
  EXPECT_FALSE(render("{{ x }}", {{"x", "\xff\xfe"}}).ok());
  EXPECT_FALSE(render("{{ x }}", {{"x", uint64_t{1} << 63}}).ok());
  EXPECT_FALSE(render("{{ x }}", Json::array()).ok());
}

TEST(ChatTemplate, LongConversationsFitTheBounds) {
  Json messages = Json::array();
  for (int i = 0; i < 2000; ++i) {
    messages.push_back({{"role", i % 2 ? "assistant" : "user"}, {"content", std::string(1000, 'x')}});
  }
  const Json goldens = load_goldens();
  for (const char* name : {"chatml_smol", "qwen3", "llama3", "sarvam", "gemma"}) {
    const auto got = render(goldens["sources"][name], {{"messages", messages}, {"bos_token", "<s>"}});
    ASSERT_TRUE(got.ok()) << name << ": " << got.error().message;
    EXPECT_GT(got->text.size(), 2'000'000u);
  }
}

TEST(ChatTemplate, WordsNameWhatTheTemplateReadsAndWrites) {
  const auto parsed = ChatTemplate::parse(
      "{# <comment> #}<text>{% macro m(a='<macro>') %}{{ a.inner }}{% endmacro %}"
      "{% if flag and 'key' in m0 %}{{ x['item'] + '<const>' | replace('<arg>', y) }}{% else %}<else>{% endif %}");
  ASSERT_TRUE(parsed.ok()) << parsed.error().message;
  const TemplateWords& words = parsed.value()->words();
  const auto has = [](const std::vector<std::string>& list, const std::string& word) {
    return std::binary_search(list.begin(), list.end(), word);
  };
  for (const char* text : {"<text>", "<macro>", "<const>", "<arg>", "<else>"})
    EXPECT_TRUE(has(words.texts, text)) << text;
  for (const std::string& text : words.texts) EXPECT_EQ(text.find("comment"), std::string::npos);
  for (const char* name : {"flag", "m0", "x", "y"}) EXPECT_TRUE(has(words.variables, name)) << name;
  for (const char* key : {"inner", "item", "key"}) EXPECT_TRUE(has(words.keys, key)) << key;
}

TEST(ChatTemplate, StrftimeNowGivesTheDate) {
  const auto got = render("{{ strftime_now('%Y-%m-%d') }}", Json::object());
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(got->text.size(), 10u);
  EXPECT_GE(got->text, "2024-01-01");
}

}  // namespace
}  // namespace vayu
