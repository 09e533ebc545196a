// attnd_error_table: prints, as Markdown, how far each feature map is from softmax attention on
// real tensors, and what it costs on one core. What the shared folder would add and is not there is
// named.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "engine/linear/feature_map.h"
#include "tests/bench/machine.h"
#include "tests/bench/map_list.h"
#include "tests/bench/softmax_error.h"
#include "tests/data/real_data.h"

namespace attnd::bench {
namespace {

struct Column {
  std::string title;
  bool costs;  // also in the table of costs: one set for each size of a key
  SoftmaxTruth truth;
  std::vector<MapFigures> figures;
};

// Word vectors as they are, with the scale 1/sqrt(d): 10^0.5 takes back the division of both sides.
data::TensorSet FlatWordVectors() {
  data::TensorSet set = data::WordVectors();
  set.shape.scale = std::sqrt(10.0F) / std::sqrt(static_cast<float>(set.shape.key_dim));
  return set;
}

// Tokens [first, first + count) of a set.
data::TensorSet Part(const data::TensorSet& set, std::int64_t first, std::int64_t count) {
  data::TensorSet part = set;
  part.tokens = count;
  const auto cut = [&](std::vector<float>& rows, std::int64_t row) {
    const auto begin = rows.begin() + first * row;
    rows = std::vector<float>(begin, begin + count * row);
  };
  for (data::Layer& layer : part.layers) {
    cut(layer.queries, set.shape.query_row());
    cut(layer.keys, set.shape.key_row());
    cut(layer.values, set.shape.value_row());
  }
  return part;
}

class Table {
 public:
  void Add(const std::string& title, bool costs, const char* source,
           std::optional<data::TensorSet> set) {
    if (!set.has_value()) {
      std::printf("Not there, left out: ../shared/data/%s\n", source);
      return;
    }
    columns_.push_back({title, costs, SoftmaxTruth(*std::move(set)), {}});
  }

  void Measure() {
    for (Column& column : columns_) {
      for (const BenchMap& map : BenchMaps()) column.figures.push_back(column.truth.Measure(map));
    }
  }

  void PrintErrors() const {
    PrintHead("map", false);
    std::printf("| the constant answer mean(V) |");
    for (const Column& column : columns_) PrintErrors(column.truth.OfMeanValue());
    std::printf("\n");
    for (std::size_t m = 0; m < BenchMaps().size(); ++m) {
      std::printf("| %s |", BenchMaps()[m].name);
      for (const Column& column : columns_) PrintErrors(column.figures[m].errors);
      std::printf("\n");
    }
  }

  void PrintCosts() const {
    PrintHead("map, parameters", true);
    std::printf("| softmax attention, exact engine |");
    for (const Column& column : columns_) {
      if (!column.costs) continue;
      const Costs& exact = column.truth.costs();
      std::printf(" %.0f KB, %.2f / %.2f us |", static_cast<double>(exact.state_bytes) / 1024,
                  exact.append_us, exact.attend_us);
    }
    std::printf("\n");
    for (std::size_t m = 0; m < BenchMaps().size(); ++m) {
      const BenchMap& map = BenchMaps()[m];
      std::printf("| %s%s%s |", map.name, *map.parameters == 0 ? "" : ", ", map.parameters);
      for (const Column& column : columns_) {
        if (!column.costs) continue;
        const MapFigures& f = column.figures[m];
        std::printf(" %lld, %.0f of %.0f KB, %.2f / %.2f us |", static_cast<long long>(f.features),
                    static_cast<double>(f.sum_bytes) / 1024,
                    static_cast<double>(f.costs.state_bytes) / 1024, f.costs.append_us,
                    f.costs.attend_us);
      }
      std::printf("\n");
    }
  }

  // Learned maps, fitted to the first half of each set of few numbers per row and measured on its
  // second half alone: queries, keys and values that the fit has not seen.
  void PrintDistilled() const {
    std::vector<const Column*> columns;
    for (const Column& column : columns_) {
      if (column.truth.set().shape.key_dim <= 16) columns.push_back(&column);
    }
    std::vector<std::string> lines = {"| map |", "|---|", "| the constant answer mean(V) |"};
    for (const BenchMap& map : DistilledMaps()) lines.push_back(absl::StrCat("| ", map.name, " |"));
    for (const Column* column : columns) {
      const data::TensorSet& set = column->truth.set();
      const std::int64_t half = set.tokens / 2;
      const SoftmaxTruth second(Part(set, half, half));
      const data::TensorSet first = Part(set, 0, half);
      absl::StrAppend(&lines[0], " ", column->title, ", d ", set.shape.key_dim, ", n ", half, " |");
      absl::StrAppend(&lines[1], "---|");
      absl::StrAppend(&lines[2], ErrorsText(second.OfMeanValue()));
      for (std::size_t m = 0; m < DistilledMaps().size(); ++m) {
        absl::StrAppend(&lines[3 + m],
                        ErrorsText(second.Measure(DistilledMaps()[m], first).errors));
      }
    }
    std::printf("\n");
    for (const std::string& line : lines) std::printf("%s\n", line.c_str());
  }

  // The A that was fitted to each set's layers.
  void PrintSharpness() const {
    std::printf("\nfavor_sharp's A:");
    const char* separator = "";
    for (const Column& column : columns_) {
      for (const MapFigures& f : column.figures) {
        if (f.least_sharpness == 0 && f.largest_sharpness == 0) continue;
        std::printf("%s %s %.2g to %.2g", separator, column.title.c_str(), f.least_sharpness,
                    f.largest_sharpness);
        separator = ",";
      }
    }
    std::printf("\n");
  }

 private:
  static std::string ErrorsText(const Errors& errors) {
    const auto decimals = [](double error) { return error < 0.1 ? 4 : error < 10 ? 2 : 0; };
    std::string text =
        absl::StrFormat(" %.*f / %.*f", decimals(errors.root_mean_square), errors.root_mean_square,
                        decimals(errors.percentile_99), errors.percentile_99);
    if (errors.refused > 0) absl::StrAppendFormat(&text, " (%.2g %%)", 100 * errors.refused);
    return text + " |";
  }

  static void PrintErrors(const Errors& errors) { std::printf("%s", ErrorsText(errors).c_str()); }

  void PrintHead(const char* first, bool costs) const {
    std::string rule = "|---|";
    std::printf("\n| %s |", first);
    for (const Column& column : columns_) {
      if (costs && !column.costs) continue;
      const data::TensorSet& set = column.truth.set();
      std::printf(" %s, d %lld, n %lld |", column.title.c_str(),
                  static_cast<long long>(set.shape.key_dim), static_cast<long long>(set.tokens));
      rule += "---|";
    }
    std::printf("\n%s\n", rule.c_str());
  }

  std::vector<Column> columns_;
};

int Main() {
  if (!PrepareMachine()) return 1;
  Table table;
  table.Add("GloVe, scale 1", true, "", data::WordVectors());
  table.Add("GloVe, scale 1", false, "glove_6B_100d_top32768.npy", data::ManyWordVectors());
  table.Add("GloVe, 1/sqrt(d)", false, "", FlatWordVectors());
  table.Add("OCR cut", true, "", data::TextRecogniserHeads());
  for (const data::SharedHeads& heads : data::kSharedHeads) {
    // "qkv_" and the length go: it has a place of its own.
    std::string title = std::string(heads.name).substr(4);
    title.resize(title.find('_'));
    const bool costs = title == "kjv64" || title == "stories260k";
    table.Add(title, costs, heads.name, data::ReadShared(heads));
  }
  table.Measure();
  std::printf(
      "\nErrors against softmax attention: root mean square / 99th percentile over all rows, in "
      "units of the values' spread;\nin brackets the share of rows whose denominator the guard "
      "refused, which count as the zeros they were answered with\n");
  table.PrintErrors();
  std::printf(
      "\nCosts per head: c, S and Z in f64 of all that is held after n tokens, time per appended "
      "token / per "
      "query\n");
  table.PrintCosts();
  table.PrintSharpness();
  std::printf(
      "\nLearned maps fitted to the first half of the tokens, errors on the second half alone\n");
  table.PrintDistilled();
  const std::vector<std::string> names = absl::StrSplit(engine::FeatureMapNames(), ", ");
  for (const std::string& name : names) {
    const auto is_measured = [&](const BenchMap& map) { return map.registered == name; };
    if (std::none_of(BenchMaps().begin(), BenchMaps().end(), is_measured)) {
      std::printf("Not measured: %s\n", name.c_str());
    }
  }
  return 0;
}

}  // namespace
}  // namespace attnd::bench

int main() { return attnd::bench::Main(); }
