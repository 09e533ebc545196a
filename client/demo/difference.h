// How far outputs are from their reference.
//
// Not thread-safe.
#ifndef ATTND_CLIENT_DEMO_DIFFERENCE_H_
#define ATTND_CLIENT_DEMO_DIFFERENCE_H_

#include <span>

namespace attnd::demo {

class Difference {
 public:
  // Counts one answer. What cannot be compared (a NaN or an infinity on either side, another number
  // of outputs) is an infinite difference, whatever comes after it.
  void Add(std::span<const float> outputs, std::span<const double> expected);

  // Largest |output - expected|, as a part of the largest |expected|. Never a NaN.
  double relative() const;

 private:
  double absolute_ = 0;
  double scale_ = 0;
};

}  // namespace attnd::demo

#endif  // ATTND_CLIENT_DEMO_DIFFERENCE_H_
