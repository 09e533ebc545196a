// Attention in f64 by the definition, O(n^2), for tests to hold the engines against.
//
// Shares no code with the engine on purpose: own feature maps, own head mapping, own masks. Inputs
// are the f32 numbers that an engine is given; everything after is f64. Thread-safe (no state);
// sizes are the caller's responsibility.
#ifndef ATTND_ORACLE_ATTENTION_ORACLE_H_
#define ATTND_ORACLE_ATTENTION_ORACLE_H_

#include <cstdint>
#include <functional>
#include <vector>

namespace attnd::oracle {

// The tokens of one layer. Query head h reads kv-head h / (query_heads / kv_heads). Borrowed.
struct Context {
  std::int64_t kv_heads = 1;
  std::int64_t query_heads = 1;
  std::int64_t key_dim = 1;
  std::int64_t value_dim = 1;
  double scale = 1.0;  // factor on query rows
  std::int64_t tokens = 0;
  const float* keys = nullptr;         // [tokens, kv_heads, key_dim]
  const float* values = nullptr;       // [tokens, kv_heads, value_dim]
  const std::uint8_t* mask = nullptr;  // [tokens], 0: masked; null: none is masked
};

// Query rows; row i sees the unmasked ones among the first visible[i] tokens. Borrowed.
struct Queries {
  const float* rows = nullptr;  // [visible.size(), query_heads, key_dim]
  std::vector<std::int64_t> visible;
  std::vector<std::int64_t> positions = {};  // where the queries stand, if that matters
};

// For `count` queries that all see `tokens` tokens.
std::vector<std::int64_t> AllVisible(std::int64_t count, std::int64_t tokens);

// For `count` queries of which the first sees `first` tokens, the next one more, and so on.
std::vector<std::int64_t> CausallyVisible(std::int64_t count, std::int64_t first);

struct Answers {
  std::vector<double> outputs;          // [n, query_heads, value_dim]
  std::vector<double> log_normalizers;  // [n, query_heads]: log sum exp of the scores; softmax
  std::vector<double> numerators;       // [n, query_heads, value_dim]; linear
  std::vector<double> denominators;     // [n, query_heads]; linear
  std::vector<std::uint8_t> empty;      // [n, query_heads]: sees no token
};

// softmax(scale * q k^T) v. A row that sees nothing: zeros, log-normalizer -inf.
Answers Softmax(const Context& context, const Queries& queries);

// The softmax weights of one query row over the context's tokens; 0 where masked or not visible.
std::vector<double> SoftmaxWeights(const Context& context, const Queries& queries,
                                   std::int64_t query, std::int64_t query_head);

// How much a token weighs for a query: a function of the query's row times the scale, the key's
// row, and where both stand. The query of row i stands at Queries::positions[i].
using Similarity =
    std::function<double(const std::vector<double>& query, const std::vector<double>& key,
                         std::int64_t query_position, std::int64_t key_position)>;

// Attention by a similarity: numerator = sum of similarity * v, denominator = sum of similarity.
// Outputs as Linear().
Answers BySimilarity(const Context& context, const Queries& queries, const Similarity& similarity,
                     bool normalized);

enum class FeatureMap {
  kIdentity,     // x
  kEluPlusOne,   // x + 1 for x > 0, else exp(x)
  kRelu,         // max(x, 0) + epsilon
  kSquaredRelu,  // max(x, 0)^2
};

// Linear attention in its similarity form: similarity(q, k) = phi(scale * q) . phi(k), numerator =
// sum of similarity * v, denominator = sum of similarity. Outputs are numerator / denominator if
// `normalized` (zeros where the denominator is 0), else the numerator.
Answers Linear(const Context& context, const Queries& queries, FeatureMap map, double epsilon,
               bool normalized);

// Efficient Attention (Shen et al. 2021): the scaled query row's softmax over its components, times
// for each component the softmax of the keys' over the visible unmasked tokens, times v. Fills
// outputs and empty.
Answers Efficient(const Context& context, const Queries& queries);

}  // namespace attnd::oracle

#endif  // ATTND_ORACLE_ATTENTION_ORACLE_H_
