#include "apps/eval/plot.h"

#include <algorithm>
#include <cmath>

namespace vayu::eval {
namespace {

constexpr int kWidth = 900, kLeft = 190, kRight = 110;  // pixels; the plots lie between the margins
constexpr int kPlotWidth = kWidth - kLeft - kRight;
constexpr int kBarHeight = 14;
constexpr size_t kLabelChars = 26;

constexpr const char* kStyle = R"(<style>
svg { font: 13px system-ui, sans-serif; }
.back { fill: #ffffff; } .text { fill: #1f2328; } .soft { fill: #59636e; }
.title { font-size: 17px; font-weight: 600; } .head { font-weight: 600; }
.grid { stroke: #d1d9e0; } .edge { stroke: #818b98; fill: none; }
.bar { fill: #2563c9; } .reference { fill: #98a2ae; } .heat { fill: #c2410c; } .never { fill: #9dc0f5; }
@media (prefers-color-scheme: dark) {
.back { fill: #0d1117; } .text { fill: #e6edf3; } .soft { fill: #9198a1; } .grid { stroke: #30363d; }
.bar { fill: #5b9bf5; } .reference { fill: #6e7681; } .heat { fill: #fb923c; } .never { fill: #1f3f73; }
}
</style>
)";

std::string escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;  // XML allows no other control characters
    }
  }
  return out;
}

// The end of a path tells more than its beginning. Cut between characters of UTF-8.
std::string short_label(const std::string& path) {
  if (path.size() <= kLabelChars) return path;
  size_t from = path.size() - kLabelChars;
  while (from < path.size() && (static_cast<unsigned char>(path[from]) & 0xC0) == 0x80) ++from;
  return "\u2026" + path.substr(from);
}

std::string text_at(double x, double y, const char* classes, const char* anchor, std::string_view text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"{}\" text-anchor=\"{}\">{}</text>\n", x, y, classes,
                     anchor, escape(text));
}

std::string rect_at(double x, double y, double width, double height, const char* classes, double opacity = 1) {
  return fmt::format("<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" class=\"{}\"{}/>\n", x, y,
                     width, height, classes, opacity < 1 ? fmt::format(" fill-opacity=\"{:.3f}\"", opacity) : "");
}

// 1, 2 or 5 times a power of ten, so that about `wanted` steps reach `max`.
double tick_step(double max, int wanted) {
  const double rough = max / wanted;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough) return factor * power;
  }
  return 10 * power;
}

// Draws below y and returns where it ended.
double draw_bars(const EvalReport& report, double y, std::string& svg) {
  std::vector<const TextScore*> texts;
  for (const TextScore& text : report.texts) texts.push_back(&text);
  if (texts.size() > 1) texts.push_back(&report.total);
  double max = 0;
  for (const TextScore* text : texts) {
    max = std::max({max, text->perplexity(), report.reference ? text->reference_perplexity() : 0});
  }
  if (!std::isfinite(max)) {
    svg += text_at(kLeft, y + 20, "text", "start", "Perplexity is too large to draw");
    return y + 30;
  }
  svg += text_at(kLeft, y, "text head", "start", "Perplexity (lower is better)");
  const int bars = report.reference ? 2 : 1;
  const double top = y + 12, group = bars * kBarHeight + 12;
  const double bottom = top + group * static_cast<double>(texts.size());
  const double step = tick_step(max, 5), scale = kPlotWidth / max;
  for (int i = 0; i * step <= max * 1.0001; ++i) {
    const double x = kLeft + i * step * scale;
    svg += fmt::format("<path class=\"grid\" d=\"M{:.1f} {:.1f}V{:.1f}\"/>\n", x, top, bottom);
    svg += text_at(x, bottom + 16, "soft", "middle", fmt::format("{:g}", i * step));
  }
  for (size_t i = 0; i < texts.size(); ++i) {
    const double at = top + group * static_cast<double>(i) + 6;
    svg += text_at(kLeft - 10, at + bars * kBarHeight / 2.0 + 4.5, "text", "end", short_label(texts[i]->path));
    const auto bar = [&](double value, double bar_y, const char* classes) {
      svg += rect_at(kLeft, bar_y, value * scale, kBarHeight - 2, classes);
      svg += text_at(kLeft + value * scale + 6, bar_y + 10.5, "text", "start", fmt::format("{:.3f}", value));
    };
    bar(texts[i]->perplexity(), at, "bar");
    if (report.reference) bar(texts[i]->reference_perplexity(), at + kBarHeight, "reference");
  }
  if (!report.reference) return bottom + 24;
  const double key = bottom + 30;
  svg += rect_at(kLeft, key, 12, 12, "bar") + text_at(kLeft + 18, key + 10.5, "soft", "start", "evaluated");
  svg +=
      rect_at(kLeft + 110, key, 12, 12, "reference") + text_at(kLeft + 128, key + 10.5, "soft", "start", "reference");
  return key + 20;
}

// Shades from nothing at 0 to full at `cap` times the even share.
double draw_heat_key(double cap, bool above_cap, double y, std::string& svg) {
  constexpr int kSteps = 24, kCell = 7;
  for (int i = 0; i < kSteps; ++i) {
    svg += rect_at(kLeft + i * kCell, y, kCell, 12, "heat", (i + 0.5) / kSteps);
  }
  svg += fmt::format("<rect x=\"{}\" y=\"{:.1f}\" width=\"{}\" height=\"12\" class=\"edge\"/>\n", kLeft, y,
                     kSteps * kCell);
  const double end = kLeft + kSteps * kCell;
  svg += text_at(kLeft, y + 27, "soft", "start", "0");
  svg += text_at(kLeft + kSteps * kCell / cap, y + 27, "soft", "middle", "1");
  svg += text_at(end, y + 27, "soft", "middle", fmt::format("{}{:.2g}", above_cap ? "\u2265 " : "", cap));
  svg += text_at(end + 20, y + 10.5, "soft", "start", "times the even share");
  svg += rect_at(end + 190, y, 12, 12, "never") + text_at(end + 208, y + 10.5, "soft", "start", "never chosen");
  return y + 36;
}

double draw_heat_map(const std::vector<LayerLoad>& layers, double y, std::string& svg) {
  const auto num_experts = static_cast<double>(layers.front().share.size());
  double max = 0;
  for (const LayerLoad& load : layers) max = std::max(max, load.max_over_uniform);
  const double cap = std::clamp(max, 2.0, 4.0);
  svg += text_at(kLeft, y, "text head", "start", "Load of experts (share of choices)");
  const double top = y + 12, width = kPlotWidth / num_experts;
  const double height = std::clamp(400.0 / static_cast<double>(layers.size()), 6.0, 22.0);
  const size_t label_every = height >= 12 ? 1 : 2;
  for (size_t i = 0; i < layers.size(); ++i) {
    const LayerLoad& load = layers[i];
    const double at = top + height * static_cast<double>(i);
    if (i % label_every == 0) {
      svg += text_at(kLeft - 8, at + height / 2 + 4.5, "soft", "end", std::to_string(load.layer));
    }
    for (size_t expert = 0; expert < load.share.size(); ++expert) {
      const double ratio = load.share[expert] * num_experts;
      const double x = kLeft + width * static_cast<double>(expert);
      if (ratio == 0) {
        svg += rect_at(x, at, width, height, "never");
      } else {
        svg += rect_at(x, at, width, height, "heat", std::min(ratio / cap, 1.0));
      }
    }
  }
  const double bottom = top + height * static_cast<double>(layers.size());
  svg += fmt::format("<rect x=\"{}\" y=\"{:.1f}\" width=\"{}\" height=\"{:.1f}\" class=\"edge\"/>\n", kLeft, top,
                     kPlotWidth, bottom - top);
  const double step = std::max(1.0, tick_step(num_experts, 8));
  for (double expert = 0; expert < num_experts; expert += step) {
    svg += text_at(kLeft + (expert + 0.5) * width, bottom + 16, "soft", "middle", fmt::format("{:g}", expert));
  }
  svg += text_at(kLeft + kPlotWidth / 2.0, bottom + 34, "text", "middle", "expert");
  svg += fmt::format(
      "<text transform=\"translate({},{:.1f}) rotate(-90)\" class=\"text\" text-anchor=\"middle\">"
      "layer</text>\n",
      kLeft - 48, (top + bottom) / 2);
  return draw_heat_key(cap, max > cap, bottom + 50, svg);
}

}  // namespace

std::string plot_svg(const EvalReport& report) {
  std::string body = text_at(24, 32, "text title", "start", "Evaluation of " + report.evaluated.name);
  double y = 54;
  const auto line = [&](std::string_view text) {
    body += text_at(24, y, "soft", "start", text);
    y += 18;
  };
  line(report.evaluated.description);
  if (report.reference) line("against " + report.reference->description);
  line(fmt::format("{} tokens in windows of {}, stride {}", report.total.tokens, report.windows.window,
                   report.windows.stride));
  if (report.reference) {
    line(fmt::format("top-1 agreement {:.2f} %, KL divergence {:.3g} nats in the mean, {:.3g} at the 99th percentile",
                     100 * report.total.agreement(), report.total.mean_kl(), report.total.p99_kl()));
  }
  y = draw_bars(report, y + 20, body);
  if (!report.expert_load.empty()) y = draw_heat_map(report.expert_load, y + 30, body);
  const int height = static_cast<int>(y) + 16;
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "role=\"img\">\n<title>Evaluation of {2}</title>\n{3}<rect width=\"{0}\" height=\"{1}\" "
      "class=\"back\"/>\n{4}</svg>\n",
      kWidth, height, escape(report.evaluated.name), kStyle, body);
}

}  // namespace vayu::eval
