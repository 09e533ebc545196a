// Which instruction sets the vector loops are compiled for. Included before any header of Highway
// by every file that includes <hwy/highway.h>.
//
// AVX2 is the floor: the engine's bits are defined by fused multiply-adds, which Highway's lesser
// targets do not have. PinIsa (engine/cpu.h) refuses processors without it before any loop runs.
// AVX-512 is chosen at run time.
#ifndef ATTND_ENGINE_SIMD_TARGETS_H_
#define ATTND_ENGINE_SIMD_TARGETS_H_

#define HWY_BASELINE_TARGETS HWY_AVX2

#endif  // ATTND_ENGINE_SIMD_TARGETS_H_
