// Rows in the order of a number that each of them has.
//
// Thread-safe; cannot fail.
#ifndef ATTND_ENGINE_KDE_INDEX_RANKED_ROWS_H_
#define ATTND_ENGINE_KDE_INDEX_RANKED_ROWS_H_

#include <bit>
#include <cstdint>
#include <span>

namespace attnd::engine {

// A number and its row in one, so that both are compared in a single step: by numbers, -0 as 0, and
// equal ones by rows.
constexpr std::uint64_t RankedRow(float number, std::int32_t row) {
  constexpr std::uint32_t kSign = 0x80000000U;
  const auto bits = std::bit_cast<std::uint32_t>(number + 0.0F);
  const std::uint32_t ascending = (bits & kSign) != 0 ? ~bits : bits | kSign;
  return (std::uint64_t{ascending} << 32) | static_cast<std::uint32_t>(row);
}

constexpr std::int32_t RowOf(std::uint64_t ranked) {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(ranked));
}

// Ascending. std::sort of pairs took 7 % of the time that building an index takes.
void SortRows(std::span<std::uint64_t> rows);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_INDEX_RANKED_ROWS_H_
