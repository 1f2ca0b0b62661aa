# pretrain.sh
TP=2
MODEL="--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --swiglu --bf16 \
  --group-query-attention --num-query-groups 8 --normalization RMSNorm --disable-bias-linear --vocab-size 128256 \
  --make-vocab-size-divisible-by 64 --untie-embeddings-and-output-weights --position-embedding-type rope \
  --attention-dropout 0 --hidden-dropout 0"
torchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py $MODEL --tensor-model-parallel-size $TP --sequence-parallel \
  --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --seq-length 8192 --micro-batch-size 1 \
  --global-batch-size 64 --recompute-granularity selective --lr 3e-4 --new-switch
