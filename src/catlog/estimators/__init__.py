"""One short file per method, and the registry that tests, docs and benchmarks walk."""

from ..surrogate import Estimator
from .arm import ARM
from .arms import ARMS
from .arsm import ARSM
from .bbvi import BBVI
from .carms import CARMS
from .criticater import CritiCateR
from .darn import DARN
from .direct_optimisation import DirectOptimisation
from .disarm import DisARM
from .disarm_tree import DisARMTree
from .double_cv import DoubleCV
from .exact import Exact
from .gumbel_rao import GumbelRao
from .gumbel_softmax import GumbelSoftmax
from .imle import IMLE
from .indecater import IndeCateR
from .leg import LEG
from .mapo import MAPO
from .memorycater import MemoryCateR
from .muprop import MuProp
from .nvil import NVIL
from .ram import RAM
from .rebar import REBAR
from .reinforce import MovingAverage, Reinforce
from .reinmax import ReinMax
from .relax import RELAX
from .rloo import RLOO
from .rodeo import RODEO
from .scater import SCateR
from .slopecater import SlopeCateR
from .straight_through import StraightThrough
from .sum_and_sample import SumAndSample
from .unordered_set import UnorderedSet
from .vimco import VIMCO

ESTIMATORS: dict[str, type[Estimator]] = {
    each.__name__: each
    for each in (
        Exact,
        Reinforce,
        RLOO,
        NVIL,
        BBVI,
        MuProp,
        REBAR,
        RELAX,
        DoubleCV,
        RODEO,
        IndeCateR,
        SCateR,
        CritiCateR,
        SlopeCateR,
        MemoryCateR,
        LEG,
        RAM,
        ARM,
        DisARM,
        ARMS,
        ARSM,
        CARMS,
        DisARMTree,
        VIMCO,
        UnorderedSet,
        SumAndSample,
        MAPO,
        StraightThrough,
        GumbelSoftmax,
        GumbelRao,
        ReinMax,
        DARN,
        IMLE,
        DirectOptimisation,
    )
}

__all__ = [
    "ARM",
    "ARMS",
    "ARSM",
    "BBVI",
    "CARMS",
    "DARN",
    "ESTIMATORS",
    "IMLE",
    "LEG",
    "MAPO",
    "NVIL",
    "RAM",
    "REBAR",
    "RELAX",
    "RLOO",
    "RODEO",
    "VIMCO",
    "CritiCateR",
    "DirectOptimisation",
    "DisARM",
    "DisARMTree",
    "DoubleCV",
    "Exact",
    "GumbelRao",
    "GumbelSoftmax",
    "IndeCateR",
    "MemoryCateR",
    "MovingAverage",
    "MuProp",
    "ReinMax",
    "Reinforce",
    "SCateR",
    "SlopeCateR",
    "StraightThrough",
    "SumAndSample",
    "UnorderedSet",
]
