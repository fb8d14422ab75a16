from typing import Any, Iterable, Optional, Tuple, TypeVar, Union

Array = TypeVar("Array")

version: str
commit: str

def forward(
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: Union[bool, str, None] = None,
    scale: Optional[float] = None,
    mask: Optional[Array] = None,
    precision: str = "ieee",
    deterministic: bool = False,
    return_lse: bool = True,
    out: Optional[Array] = None,
    implementation: Optional[str] = None,
    window: Union[Tuple[Optional[int], Optional[int]],
                  Tuple[Optional[int], Optional[int], str], None] = None,
    softcap: Optional[float] = None,
    alibi_slopes: Optional[Array] = None,
    dropout_p: float = 0.0,
    dropout_seed: Union[Tuple[int, int], Any, None] = None,
    cu_seqlens_q: Optional[Any] = None,
    cu_seqlens_k: Optional[Any] = None,
    seqused_q: Optional[Any] = None,
    seqused_k: Optional[Any] = None,
    max_seqlen_q: Optional[int] = None,
    max_seqlen_k: Optional[int] = None,
    sinks: Optional[Any] = None,
    attention_chunk: Optional[int] = None,
    block_table: Optional[Any] = None,
    cache_batch_idx: Optional[Any] = None,
    leftpad_k: Optional[Any] = None,
    schedule: Optional[Any] = None,
) -> Tuple[Array, Optional[Array]]: ...
def schedule(
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: Union[bool, str, None] = None,
    window: Union[Tuple[Optional[int], Optional[int]],
                  Tuple[Optional[int], Optional[int], str], None] = None,
    deterministic: bool = False,
    cu_seqlens_q: Optional[Any] = None,
    cu_seqlens_k: Optional[Any] = None,
    seqused_q: Optional[Any] = None,
    seqused_k: Optional[Any] = None,
    max_seqlen_q: Optional[int] = None,
    max_seqlen_k: Optional[int] = None,
    out: Optional[Any] = None,
) -> Union[Tuple[int, int], Any, None]: ...
def append(
    k_cache: Array,
    v_cache: Array,
    k_new: Array,
    v_new: Array,
    cache_seqlens: Any,
    *,
    block_table: Optional[Any] = None,
    cache_batch_idx: Optional[Any] = None,
    cu_seqlens_new: Optional[Any] = None,
    seqused_after: Optional[Any] = None,
    rotary_cos: Optional[Array] = None,
    rotary_sin: Optional[Array] = None,
    rotary_positions: Optional[Any] = None,
    q: Optional[Array] = None,
    cu_seqlens_q: Optional[Any] = None,
    interleaved: bool = False,
    consecutive: bool = True,
) -> Optional[Array]: ...
def backward(
    d_o: Array,
    q: Array,
    k: Array,
    v: Array,
    o: Array,
    lse: Array,
    *,
    d_lse: Optional[Array] = None,
    causal: Union[bool, str, None] = None,
    scale: Optional[float] = None,
    mask: Optional[Array] = None,
    precision: str = "ieee",
    deterministic: bool = False,
    dq: Optional[Array] = None,
    dk: Optional[Array] = None,
    dv: Optional[Array] = None,
    implementation: Optional[str] = None,
    window: Union[Tuple[Optional[int], Optional[int]],
                  Tuple[Optional[int], Optional[int], str], None] = None,
    softcap: Optional[float] = None,
    alibi_slopes: Optional[Array] = None,
    dropout_p: float = 0.0,
    dropout_seed: Union[Tuple[int, int], Any, None] = None,
    cu_seqlens_q: Optional[Any] = None,
    cu_seqlens_k: Optional[Any] = None,
    seqused_q: Optional[Any] = None,
    seqused_k: Optional[Any] = None,
    max_seqlen_q: Optional[int] = None,
    max_seqlen_k: Optional[int] = None,
    sinks: Optional[Any] = None,
    d_sinks: Optional[Any] = None,
    attention_chunk: Optional[int] = None,
) -> Tuple[Array, ...]: ...
def merge(
    parts: Iterable[Tuple[Array, Array]], *, dtype: str = "fp32", return_lse: bool = True
) -> Tuple[Array, Optional[Array]]: ...
def configure_cpu(*, threads: int = 0, isa: str = "automatic") -> None: ...
def attention(*arguments: object) -> Any: ...
def torch_forward(*arguments: object) -> Tuple[Array, Array]: ...
def torch_backward(*arguments: object) -> Tuple[Array, ...]: ...

class Ranks:
    def __init__(self, group: str, transport: str, timeout_s: float) -> None: ...
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def host(self) -> str: ...
    @property
    def transport(self) -> str: ...
    def run(self, kind: str, source: int, to: int, bytes: int, dtype: str, root: int,
            name: str) -> None: ...
    def close(self) -> None: ...
