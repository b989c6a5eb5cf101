// Runs a loop in the widest instructions that the processor has of those we compile for: the baseline and AVX2; for products of
// 64-bit integers also AVX-512. Without fused products, so that all processors give the same bits.
#pragma once

namespace glt {

#if defined(__x86_64__) && defined(__GNUC__)
template <class Body, class... Arguments>
__attribute__((target("avx2"))) void run_avx2(const Body& body, Arguments... arguments) {
  body(arguments...);
}

template <class Body, class... Arguments>
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))) void run_avx512(const Body& body, Arguments... arguments) {
  body(arguments...);
}
#endif

// wide, narrow: structs of which operator() is GLT_HD_INLINE; wide is for AVX2.
template <class Wide, class Narrow, class... Arguments>
void run_widest(const Wide& wide, const Narrow& narrow, Arguments... arguments) {
#if defined(__x86_64__) && defined(__GNUC__)
  static const bool avx2 = (__builtin_cpu_init(), __builtin_cpu_supports("avx2"));
  if (avx2) return run_avx2(wide, arguments...);
#else
  (void)wide;
#endif
  narrow(arguments...);
}

template <class Body, class... Arguments>
void run_wide(const Body& body, Arguments... arguments) {
  run_widest(body, body, arguments...);
}

// For loops that multiply 64-bit integers, which AVX2 cannot.
template <class Body, class... Arguments>
void run_products(const Body& body, Arguments... arguments) {
#if defined(__x86_64__) && defined(__GNUC__)
  static const bool avx512 = (__builtin_cpu_init(), __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                                                        __builtin_cpu_supports("avx512vl"));
  if (avx512) return run_avx512(body, arguments...);
#endif
  run_wide(body, arguments...);
}

}  // namespace glt
