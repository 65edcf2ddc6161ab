// Which threshold leaves which density of a sparse layer: where the loop that follows the density starts. All
// of it may be called from any thread.
#pragma once

namespace gradwire::compress {

// alpha for which a generalised Gaussian, exp(-|x|^beta), has the share `density` of its values above alpha
// root mean squares; `dispersion`, mean|x| / rms(x), says which beta: 0.798 a Gaussian's, 0.707 a
// Laplacian's. With Gamma the gamma function and Q its regularised upper incomplete one:
//   dispersion = Gamma(2/beta) / sqrt(Gamma(1/beta) * Gamma(3/beta))
//   density = Q(1/beta, (alpha * sqrt(Gamma(3/beta) / Gamma(1/beta)))^beta)
// dispersion is above 0 and at most 1, density above 0 and below 1. The result is a multiple of 1/256 within
// [0.1, 2.4]: with residuals in the sum an alpha above sqrt(6) sends nothing in the end.
//
// The dispersion is rounded to a multiple of 1/1024 and the result as said, so that the last bits of a
// mathematical library, which are not the same on every machine, do not get into a run.
double shape_of(double dispersion);  // 1/beta
double shape_alpha(double shape, double density);
inline double calibrated_alpha(double dispersion, double density) {
  return shape_alpha(shape_of(dispersion), density);
}

// The same in units of the fresh gradient's root mean square, in the steady state with a residual: an element
// is a random walk until it leaves +-alpha, which takes (alpha + 0.583)^2 steps (the 0.583 is how far a
// discrete walk overshoots: Siegmund, Sequential Analysis, 1985). density is above 0 and below 1.
double walk_alpha(double density);

}  // namespace gradwire::compress
