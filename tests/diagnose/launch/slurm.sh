#!/bin/bash
#SBATCH --job-name=x
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
srun torchrun --nnodes $SLURM_NNODES --nproc_per_node $SLURM_GPUS_PER_NODE --rdzv_endpoint $H:29500 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 2 --train-iters 10 --bf16 --tokenizer-type GPT2BPETokenizer --vocab-file v.json --merge-file m.txt
