// Which tokens a query of the exact engine sees: all, or the newest ones up to a fixed number. A
// plain value; thread-safe.
#ifndef ATTND_ENGINE_EXACT_TOKEN_WINDOW_H_
#define ATTND_ENGINE_EXACT_TOKEN_WINDOW_H_

#include <algorithm>
#include <cstdint>

#include "engine/block.h"

namespace attnd::engine {

struct TokenWindow {
  std::int64_t tokens = 0;  // 0: all

  // The first token that a query sees which sees none from `position` on.
  std::int64_t First(std::int64_t position) const {
    return tokens == 0 ? 0 : std::max(position - tokens, std::int64_t{0});
  }

  // Those of the 64 rows from token `block` on that the window does not leave out.
  RowMask Rows(std::int64_t position, std::int64_t block) const {
    const std::int64_t left_out = First(position) - block;
    return left_out <= 0 ? ~RowMask{0} : ~FirstRows(left_out);
  }

  // The most blocks that hold a window's tokens and the rest of their blocks.
  std::int64_t blocks() const { return (tokens + kBlockTokens - 2) / kBlockTokens + 1; }
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_EXACT_TOKEN_WINDOW_H_
