#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
RECIPE="llama3_8b_pretrain_config"
CLI_OVERRIDES="model.tensor_model_parallel_size=2 train.micro_batch_size=1 train.global_batch_size=128 model.seq_length=8192"
CMD="uv run --no-sync python scripts/training/run_recipe.py --recipe $RECIPE $CLI_OVERRIDES"
srun --container-image=x bash -c "$CMD"
