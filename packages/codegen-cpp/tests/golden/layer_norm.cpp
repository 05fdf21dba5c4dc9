// layer_norm
// in in0: f32; out out0: f32
extern "C" i64 layer_norm_0(const i64* arguments) {
    const float* in0 = (const float*)arguments[0];
    float* out0 = (float*)arguments[1];
    #pragma omp parallel for
    for (i64 x0 = 0; x0 < 512; ++x0) {
        double v1 = 0;
        for (i64 r0_begin = 0; r0_begin < 768; r0_begin += FXLOOM_SUM_BLOCK) {
            const i64 r0_end = minimum<i64>(r0_begin + FXLOOM_SUM_BLOCK, 768);
            float v1_block = 0;
            #pragma omp simd reduction(+:v1_block)
            for (i64 r0 = r0_begin; r0 < r0_end; ++r0) {
                v1_block += in0[r0 + 768 * x0];
            }
            v1 += v1_block;
        }
        const float v3 = (float)v1 / 768.0f;
        double v7 = 0;
        for (i64 r0_begin = 0; r0_begin < 768; r0_begin += FXLOOM_SUM_BLOCK) {
            const i64 r0_end = minimum<i64>(r0_begin + FXLOOM_SUM_BLOCK, 768);
            float v7_block = 0;
            #pragma omp simd reduction(+:v7_block)
            for (i64 r0 = r0_begin; r0 < r0_end; ++r0) {
                const float v5 = in0[r0 + 768 * x0] - v3;
                v7_block += v5 * v5;
            }
            v7 += v7_block;
        }
        const float v11 = 1.0f / __builtin_sqrtf((float)v7 / 768.0f + 1e-05f);
        #pragma omp simd
        for (i64 r0 = 0; r0 < 768; ++r0) {
            out0[r0 + 768 * x0] = (in0[r0 + 768 * x0] - v3) * v11;
        }
    }
    return 0;
}
