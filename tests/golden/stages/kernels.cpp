// add + amax + sub + exp + sum + div
// in in0: f32; in in1: f32; out out0: f32; scratch tmp0: f32[512]
extern "C" i64 fused_add_amax_sub_exp_sum_div_0(const i64* arguments) {
    const float* in0 = (const float*)arguments[0];
    const float* in1 = (const float*)arguments[1];
    float* out0 = (float*)arguments[2];
    #pragma omp parallel for
    for (i64 x0 = 0; x0 < 4096; ++x0) {
        alignas(64) float tmp0[512];
        float v3 = -__builtin_inff();
        #pragma omp simd reduction(nan_max:v3)
        for (i64 r0 = 0; r0 < 512; ++r0) {
            v3 = maximum<float>(in0[r0 + 512 * x0] + in1[r0 + 512 * x0], v3);
        }
        double v9 = 0;
        for (i64 r0_begin = 0; r0_begin < 512; r0_begin += FXLOOM_SUM_BLOCK) {
            const i64 r0_end = minimum<i64>(r0_begin + FXLOOM_SUM_BLOCK, 512);
            float v9_block = 0;
            #pragma omp simd reduction(+:v9_block)
            for (i64 r0 = r0_begin; r0 < r0_end; ++r0) {
                const float v4 = in0[r0 + 512 * x0];
                const float v5 = in1[r0 + 512 * x0];
                const float v8 = exp_f32(v4 + v5 - v3);
                tmp0[r0] = v8;
                v9_block += v8;
            }
            v9 += v9_block;
        }
        #pragma omp simd
        for (i64 r0 = 0; r0 < 512; ++r0) {
            out0[r0 + 512 * x0] = tmp0[r0] / (float)v9;
        }
    }
    return 0;
}
