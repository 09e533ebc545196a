// The real tensors that tests and benchmarks run on: the cuts of this directory, which are always
// there, and larger sets in ../shared/data beside the project, which a caller leaves out, visibly,
// where they are not.
//
// README.md says where the cuts come from. A file that is there and cannot be read ends the
// program. Any thread.
#ifndef ATTND_TESTS_DATA_REAL_DATA_H_
#define ATTND_TESTS_DATA_REAL_DATA_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/block.h"

namespace attnd::data {

struct Layer {
  std::vector<float> queries;  // [tokens, Hq, d_k]
  std::vector<float> keys;     // [tokens, H, d_k]
  std::vector<float> values;   // [tokens, H, d_v]
};

// Layers of one shape and length; the scale of the shape is the data's own.
struct TensorSet {
  engine::LayerShape shape;
  std::int64_t tokens = 0;
  std::vector<Layer> layers;
};

// 4,096 word vectors as queries and keys, divided by 10^0.25 (so the scale is 1), the next 4,096 as
// values.
TensorSet WordVectors();

// The same with 16,384; from the shared folder.
std::optional<TensorSet> ManyWordVectors();

// Word vectors as they are, [n, 100], the most frequent word first: those of the file that the
// environment's ATTND_WORD_VECTORS names, else the shared folder's 32,768; empty without either.
std::vector<float> WordVectorRows();

// Four heads of a text recogniser's second attention layer, 2,048 positions.
TensorSet TextRecogniserHeads();

// Heads of one model in the shared folder, with the scale d^-1/2.
struct SharedHeads {
  const char* name;  // the files NAME_{q,k,v}.npy: [layers, heads, tokens, dim]
  std::int64_t layers, query_heads, kv_heads, tokens, dim;
};
inline constexpr SharedHeads kSharedHeads[] = {
    {"qkv_stories260k_ntk4096", 5, 8, 4, 4096, 8},
    {"qkv_ppocr4_svtr_n4096", 2, 8, 8, 4096, 15},
    {"qkv_kjv64_n4096", 4, 2, 2, 4096, 64},
    {"qkv_kwt1_n99", 48, 1, 1, 99, 64},
};

// Nothing where the files are not there.
std::optional<TensorSet> ReadShared(const SharedHeads& heads);

// Layers of an RWKV-5.2 network: receptances as queries, and what the network itself answered;
// from the shared folder.
struct RecurrentSet {
  TensorSet tensors;
  struct Layer {
    std::vector<float> decays;   // [H, d_k], what S is multiplied by
    std::vector<float> bonus;    // [H, d_k]
    std::vector<float> outputs;  // [tokens, H, d_v]
  };
  std::vector<Layer> layers;
};
std::optional<RecurrentSet> RwkvHeads();

}  // namespace attnd::data

#endif  // ATTND_TESTS_DATA_REAL_DATA_H_
