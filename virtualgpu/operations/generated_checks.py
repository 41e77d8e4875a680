"""Operations whose CUDA wrapper begins with a check that all tensors are on one device.

PyTorch generates that check from native_functions.yaml (torchgen, gen_device_check); operations marked there as
`device_check: NoCheck` check in TensorIterator or by hand. A test holds these names against the installed torchgen.
"""

from __future__ import annotations

# Names without their overload and without the underscore of the in-place form.
_STRUCTURED = """
    _addmm_activation _convert_indices_from_coo_to_csr _convert_indices_from_csr_to_coo _linalg_det _linalg_eigh
    _linalg_slogdet _linalg_solve_ex _linalg_svd _log_softmax _log_softmax_backward_data _scaled_addmm
    _scaled_grouped_mm_v2 _scaled_mm_v2 _softmax _softmax_backward_data _upsample_bicubic2d_aa
    _upsample_bicubic2d_aa_backward _upsample_bilinear2d_aa _upsample_bilinear2d_aa_backward
    _upsample_nearest_exact1d _upsample_nearest_exact1d_backward _upsample_nearest_exact2d
    _upsample_nearest_exact2d_backward _upsample_nearest_exact3d _upsample_nearest_exact3d_backward acosh
    adaptive_max_pool2d adaptive_max_pool2d_backward adaptive_max_pool3d adaptive_max_pool3d_backward addmm addmv
    amax amin argmax argmin asinh atanh avg_pool2d avg_pool2d_backward avg_pool3d avg_pool3d_backward baddbmm bmm
    cat clamp clamp_max clamp_min elu_backward exp2 fractional_max_pool2d fractional_max_pool2d_backward
    fractional_max_pool3d gather gcd gelu_backward glu hardshrink_backward hardsigmoid_backward hash_tensor i0
    igamma igammac index_add index_copy index_reduce isin isneginf isposinf lcm leaky_relu_backward
    linalg_cholesky_ex linalg_cross linalg_inv_ex linalg_ldl_factor_ex linalg_ldl_solve linalg_lu
    linalg_lu_factor_ex linalg_lu_solve linalg_polar linalg_qr linalg_vector_norm logaddexp logaddexp2
    logit_backward lu_unpack max_pool2d_with_indices max_pool2d_with_indices_backward mish mm nextafter
    nll_loss_backward nll_loss_forward reflection_pad1d reflection_pad1d_backward reflection_pad3d
    reflection_pad3d_backward replication_pad1d replication_pad1d_backward replication_pad2d replication_pad3d
    scatter scatter_add scatter_reduce sgn sigmoid_backward signbit silu silu_backward sinc slow_conv_transpose2d
    softplus_backward softshrink_backward sort special_airy_ai special_bessel_j0 special_bessel_j1 special_bessel_y0
    special_bessel_y1 special_entr special_erfcx special_i0e special_i1 special_i1e special_log_ndtr
    special_modified_bessel_i0 special_modified_bessel_i1 special_modified_bessel_k0 special_modified_bessel_k1
    special_ndtri special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1 special_spherical_bessel_j0
    tanh_backward threshold_backward topk triangular_solve tril triu upsample_bicubic2d upsample_bicubic2d_backward
    upsample_bilinear2d upsample_bilinear2d_backward upsample_linear1d upsample_linear1d_backward upsample_nearest1d
    upsample_nearest1d_backward upsample_nearest2d upsample_nearest2d_backward upsample_nearest3d
    upsample_nearest3d_backward upsample_trilinear3d upsample_trilinear3d_backward
"""

_PLAIN = """
    _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward _amp_foreach_non_finite_check_and_unscale
    _amp_update_scale _batch_norm_with_update _cdist_backward _cdist_forward _cholesky_solve_helper _chunk_cat
    _compute_linear_combination _conv_depthwise2d _cslt_sparse_mm _cslt_sparse_mm_search _ctc_loss
    _ctc_loss_backward _cudnn_attention_backward _cudnn_attention_forward
    _cudnn_attention_forward_no_dropout_inplace _cudnn_rnn_backward _cudnn_rnn_flatten_weight _cummax_helper
    _cummin_helper _dirichlet_grad _efficient_attention_forward _embedding_bag _embedding_bag_backward
    _embedding_bag_dense_backward _embedding_bag_forward_only _embedding_bag_per_sample_weights_backward
    _fake_quantize_learnable_per_channel_affine _fake_quantize_learnable_per_channel_affine_backward
    _fake_quantize_learnable_per_tensor_affine _fake_quantize_learnable_per_tensor_affine_backward
    _fake_quantize_per_tensor_affine_cachemask_tensor_qparams _fft_c2c _fft_c2r _fft_r2c _flash_attention_forward
    _flash_attention_forward_no_dropout_inplace _fused_adagrad _fused_adam _fused_adamw
    _fused_moving_avg_obs_fq_helper _fused_rms_norm _fused_rms_norm_backward _fused_sdp_choice _fused_sgd
    _grouped_mm _int_mm _jagged_to_padded_dense_forward _logcumsumexp _make_per_channel_quantized_tensor
    _masked_scale _masked_softmax _masked_softmax_backward _mixed_dtypes_linear _native_batch_norm_legit
    _native_multi_head_attention _nested_tensor_from_mask _nested_tensor_from_mask_left_aligned
    _padded_dense_to_jagged_forward _pdist_backward _philox_key_fold_in _philox_normal _philox_randint
    _philox_uniform _prelu_kernel _prelu_kernel_backward _scaled_dot_product_cudnn_attention
    _scaled_dot_product_cudnn_attention_backward _scaled_dot_product_efficient_attention
    _scaled_dot_product_flash_attention _scaled_grouped_mm _scaled_mm _segment_reduce_backward _slow_conv2d_backward
    _slow_conv2d_forward _sparse_semi_structured_addmm _sparse_semi_structured_apply
    _sparse_semi_structured_apply_dense _sparse_semi_structured_linear _sparse_semi_structured_mm
    _standard_gamma_grad _thnn_fused_gru_cell _thnn_fused_gru_cell_backward _thnn_fused_lstm_cell
    _thnn_fused_lstm_cell_backward_impl _transform_bias_rescale_qkv _transformer_encoder_layer_fwd
    _triton_multi_head_attention _triton_scaled_dot_attention _weight_int4pack_mm _weight_int8pack_mm
    _weight_norm_interface _weight_norm_interface_backward adaptive_avg_pool2d adaptive_avg_pool3d
    adaptive_avg_pool3d_backward addbmm addr batch_norm_backward batch_norm_backward_elemt
    batch_norm_backward_reduce batch_norm_elemt batch_norm_gather_stats batch_norm_gather_stats_with_counts
    batch_norm_update_stats binary_cross_entropy_backward bincount bucketize cholesky_inverse col2im complex
    conj_physical conv_depthwise3d convolution_backward cudnn_batch_norm cudnn_batch_norm_backward cudnn_convolution
    cudnn_convolution_add_relu cudnn_convolution_relu cudnn_convolution_transpose cudnn_grid_sampler
    cudnn_grid_sampler_backward dot embedding_dense_backward embedding_renorm equal
    fake_quantize_per_channel_affine_cachemask fractional_max_pool3d_backward frexp geqrf glu_backward
    glu_backward_jvp glu_jvp grid_sampler_2d grid_sampler_2d_backward grid_sampler_3d grid_sampler_3d_backward
    hardswish_backward hardtanh_backward histc huber_loss huber_loss_backward im2col index_select kthvalue
    linalg_eig linalg_eigvals linalg_householder_product linalg_lstsq linalg_solve_triangular log_sigmoid_backward
    logit masked_scatter masked_select max_pool3d_with_indices max_pool3d_with_indices_backward max_unpool2d
    max_unpool3d median miopen_batch_norm miopen_batch_norm_backward miopen_convolution miopen_convolution_add_relu
    miopen_convolution_relu miopen_convolution_transpose miopen_depthwise_convolution miopen_rnn miopen_rnn_backward
    mish_backward mse_loss_backward multi_margin_loss multi_margin_loss_backward multilabel_margin_loss_backward
    multilabel_margin_loss_forward multinomial mvlgamma nan_to_num nanmedian nansum native_batch_norm
    native_batch_norm_backward native_dropout_backward native_group_norm native_group_norm_backward
    native_layer_norm native_layer_norm_backward nll_loss2d_backward nll_loss2d_forward nonzero nonzero_static
    normal ormqr polar put quantize_per_channel quantize_per_tensor reflection_pad2d reflection_pad2d_backward
    replication_pad2d_backward replication_pad3d_backward rrelu_with_noise searchsorted slow_conv_dilated2d
    slow_conv_dilated3d slow_conv_transpose3d smooth_l1_loss_backward split_with_sizes_copy sspaddmm take vdot
"""
STRUCTURED, PLAIN = frozenset(_STRUCTURED.split()), frozenset(_PLAIN.split())


def wrapper(name: str, overload: str, *, out: bool) -> str | None:
    """Return the name of the generated function for `aten::name.overload`, None for one that does not check.

    `out`: True for overloads with `out=`.
    """
    base = name.rstrip("_")
    if overload == "tensor_lr" or (base.startswith("clamp") and (out or overload not in ("Tensor", ""))):
        return None
    suffix = "_out" if out else ""
    if base in PLAIN or (base in STRUCTURED and overload.startswith("dtype")):
        return f"wrapper_CUDA_{overload}_{name}{suffix}"
    if base in STRUCTURED:
        return f"wrapper_CUDA_{name}{suffix}" + (f"_{overload}" if overload else "")
    return None
