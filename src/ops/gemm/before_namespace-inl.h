// HWY_BEFORE_NAMESPACE with the VNNI instructions added: Highway 1.0.3 tests for them before it picks AVX3_DL, but does
// not let the compiler use them. No include guard: each include opens one region, closed by HWY_AFTER_NAMESPACE.
#if HWY_TARGET == HWY_AVX3_DL
HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512vnni")
#else
HWY_BEFORE_NAMESPACE();
#endif
