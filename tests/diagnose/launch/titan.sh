#!/usr/bin/bash
set -ex
NGPU=${NGPU:-"8"}
export LOG_RANK=${LOG_RANK:-0}
PYTORCH_ALLOC_CONF="expandable_segments:True" \
torchrun --nproc_per_node=${NGPU} --rdzv_backend c10d --local-ranks-filter ${LOG_RANK} --role rank --tee 3 \
-m torchtitan.train --job.config_file ./llama3_8b.toml --model.name llama3 --model.flavor 8B --training.seq_len 8192 --training.local_batch_size 1 --parallelism.tensor_parallel_degree 1 "$@"
