// The instruction set that the engine computes with. A fleet of unlike machines pins one, so that
// all give the same bits.
//
// The pin is process-wide and must come before the first product or vector loop: oneDNN and Highway
// both choose their code at first use. Call from main() before threads start.
#ifndef ATTND_ENGINE_CPU_H_
#define ATTND_ENGINE_CPU_H_

#include <string>

#include "absl/status/status.h"

namespace attnd::engine {

// isa: "native" (the best there is), "avx2" or "avx512".
// INVALID_ARGUMENT: another name. FAILED_PRECONDITION: the processor lacks it (every choice needs
// at least AVX2 with FMA, because the engine's bits are defined by fused multiply-adds), or oneDNN
// was used before.
absl::Status PinIsa(const std::string& isa);

// The instruction set in use: "avx2" or "avx512", or "unsupported" on a processor without AVX2.
std::string ActiveIsa();

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_CPU_H_
