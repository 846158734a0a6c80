#include "apps/eval/report.h"

#include <gtest/gtest.h>

#include "apps/eval/plot.h"

namespace vayu::eval {
namespace {

EvalReport example(bool with_reference) {
  EvalReport report;
  report.evaluated = {"tiny <&>", "tiny <&> (weights as stored)", {{"path", "tiny"}}};
  if (with_reference) report.reference = {"other", "other model", {{"path", "other"}}};
  report.texts = {{.path = "a.txt", .tokens = 10, .bytes = 30, .nll = 20}, {.path = "b.txt", .tokens = 10, .nll = 30}};
  for (TextScore& text : report.texts) {
    text.kl.assign(10, 0.5);
    report.total.add(text);
  }
  report.total.path = "all";
  report.expert_load = {{.layer = 1, .choices = 4, .share = {0.5, 0.5, 0}, .never_chosen = {2}},
                        {.layer = 2, .choices = 4, .share = {0.25, 0.25, 0.5}}};
  return report;
}

size_t count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

TEST(EvalReportTest, TableShowsTextsSumAndComparison) {
  const std::string plain = format_table(example(false)), compared = format_table(example(true));
  EXPECT_NE(plain.find("7.3891"), std::string::npos);   // exp(2)
  EXPECT_NE(plain.find("12.1825"), std::string::npos);  // exp(2.5)
  EXPECT_EQ(plain.find("agreement"), std::string::npos);
  EXPECT_NE(compared.find("agreement"), std::string::npos);
  EXPECT_NE(compared.find("0.500000"), std::string::npos);
}

TEST(EvalReportTest, JsonHoldsEveryFigure) {
  const auto json = to_json(example(true));
  EXPECT_EQ(json["texts"].size(), 2);
  EXPECT_EQ(json["total"]["tokens"], 20);
  EXPECT_DOUBLE_EQ(json["total"]["kl_p99_nats"], 0.5);
  EXPECT_EQ(json["expert_load"][0]["never_chosen"], (std::vector<int>{2}));
  EXPECT_FALSE(to_json(example(false))["total"].contains("kl_mean_nats"));
}

TEST(EvalPlot, DrawsBarsAndCellsAndEscapesText) {
  const std::string svg = plot_svg(example(true));
  EXPECT_EQ(count(svg, "tiny &lt;&amp;&gt;"), 3);
  EXPECT_EQ(svg.find("<&>"), std::string::npos);
  EXPECT_EQ(count(svg, "class=\"bar\""), 3 + 1);        // two texts, their sum, the key
  EXPECT_EQ(count(svg, "class=\"reference\""), 3 + 1);  // the same
  EXPECT_EQ(count(svg, "class=\"never\""), 1 + 1);      // one expert, the key
  EXPECT_EQ(count(svg, "class=\"heat\""), 5 + 24);      // the other experts, the shades of the key
  EXPECT_EQ(count(svg, "<text"), count(svg, "</text>"));
}

}  // namespace
}  // namespace vayu::eval
