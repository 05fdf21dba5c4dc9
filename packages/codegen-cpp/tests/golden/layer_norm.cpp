// layer_norm
// in in0: f32; out out0: f32
extern "C" i64 layer_norm_0(const i64* arguments) {
    const float* in0 = (const float*)arguments[0];
    float* out0 = (float*)arguments[1];
    #pragma omp parallel for
    for (i64 x0 = 0; x0 < 512; ++x0) {
        float v1 = 0;
        #pragma omp simd reduction(+:v1)
        for (i64 r0 = 0; r0 < 768; ++r0) {
            v1 += in0[r0 + 768 * x0];
        }
        const float v3 = v1 / 768.0f;
        float v7 = 0;
        #pragma omp simd reduction(+:v7)
        for (i64 r0 = 0; r0 < 768; ++r0) {
            const float v5 = in0[r0 + 768 * x0] - v3;
            v7 += v5 * v5;
        }
        const float v11 = 1.0f / __builtin_sqrtf(v7 / 768.0f + 1e-05f);
        #pragma omp simd
        for (i64 r0 = 0; r0 < 768; ++r0) {
            out0[r0 + 768 * x0] = (in0[r0 + 768 * x0] - v3) * v11;
        }
    }
    return 0;
}
