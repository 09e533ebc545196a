#include "tests/oracle/recurrence.h"

#include <cstddef>

namespace attnd::oracle {
namespace {

using Row = std::vector<double>;

Row ToRow(const float* numbers, std::int64_t count, double factor) {
  Row row;
  for (std::int64_t i = 0; i < count; ++i) row.push_back(factor * static_cast<double>(numbers[i]));
  return row;
}

// One head: S and Z in one matrix, the values' last column being 1.
class Head {
 public:
  Head(const Context& context, const Recurrence& rule, std::int64_t kv_head)
      : context_(context), rule_(rule), kv_head_(kv_head) {}

  void Append(std::int64_t token) {
    if (context_.mask != nullptr && context_.mask[token] == 0) {
      if (rule_.read_first) newest_ = Row(newest_.size(), 0.0);
      before_ = sums_;
      return;
    }
    const std::int64_t at = token * context_.kv_heads + kv_head_;
    Row key = ToRow(context_.keys + at * context_.key_dim, context_.key_dim, 1.0);
    if (rule_.map) key = rule_.map(key);
    Row value = ToRow(context_.values + at * context_.value_dim, context_.value_dim, 1.0);
    value.push_back(1.0);
    sums_.resize(key.size() * value.size(), 0.0);
    before_ = sums_;
    newest_ = Row(sums_.size(), 0.0);
    for (std::size_t a = 0; a < key.size(); ++a) {
      const double decay = rule_.decay(token, kv_head_, static_cast<std::int64_t>(a));
      for (std::size_t d = 0; d < value.size(); ++d) sums_[a * value.size() + d] *= decay;
    }
    if (rule_.rate) {
      for (std::size_t d = 0; d + 1 < value.size(); ++d) {
        double held = 0;
        for (std::size_t a = 0; a < key.size(); ++a) held += key[a] * sums_[a * value.size() + d];
        value[d] = rule_.rate(token, kv_head_) * (value[d] - held);
      }
    }
    for (std::size_t a = 0; a < key.size(); ++a) {
      for (std::size_t d = 0; d < value.size(); ++d) {
        const double product = key[a] * value[d];
        sums_[a * value.size() + d] += product;
        if (rule_.bonus) {
          newest_[a * value.size() + d] =
              rule_.bonus(kv_head_, static_cast<std::int64_t>(a)) * product;
        }
      }
    }
    any_ = true;
  }

  bool any() const { return any_; }

  Row Read(const float* query) const {
    Row features = ToRow(query, context_.key_dim, context_.scale);
    if (rule_.map) features = rule_.map(features);
    const std::size_t columns = static_cast<std::size_t>(context_.value_dim) + 1;
    Row result(columns, 0.0);
    const Row& sums = rule_.read_first ? before_ : sums_;
    for (std::size_t at = 0; at < sums.size(); ++at) {
      const double own = rule_.read_first ? newest_[at] : 0.0;
      result[at % columns] += features[at / columns] * (sums[at] + own);
    }
    return result;
  }

 private:
  const Context& context_;
  const Recurrence& rule_;
  const std::int64_t kv_head_;
  Row sums_;
  Row before_;  // what was there when the newest token came
  Row newest_;
  bool any_ = false;
};

}  // namespace

Answers Recur(const Context& context, const Queries& queries, const Recurrence& rule) {
  Answers answers;
  std::vector<Head> heads;
  for (std::int64_t h = 0; h < context.kv_heads; ++h) heads.emplace_back(context, rule, h);
  std::int64_t token = 0;
  for (std::size_t q = 0; q < queries.visible.size(); ++q) {
    for (; token < queries.visible[q]; ++token) {
      for (Head& head : heads) head.Append(token);
    }
    for (std::int64_t h = 0; h < context.query_heads; ++h) {
      const Head& head =
          heads[static_cast<std::size_t>(h / (context.query_heads / context.kv_heads))];
      const std::int64_t row = static_cast<std::int64_t>(q) * context.query_heads + h;
      Row sums = head.Read(queries.rows + row * context.key_dim);
      const double denominator = sums.back();
      sums.pop_back();
      answers.empty.push_back(head.any() ? 0 : 1);
      answers.denominators.push_back(denominator);
      for (const double sum : sums) {
        answers.numerators.push_back(sum);
        const bool divide = rule.normalized && denominator != 0;
        answers.outputs.push_back(divide ? sum / denominator : rule.normalized ? 0.0 : sum);
      }
    }
  }
  return answers;
}

}  // namespace attnd::oracle
