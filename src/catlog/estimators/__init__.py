"""One short file per method, and the registry that tests, docs and benchmarks walk."""

from ..estimator import Estimator
from .catlog_trick.criticater import CritiCateR
from .catlog_trick.indecater import IndeCateR
from .catlog_trick.leg import LEG
from .catlog_trick.memorycater import MemoryCateR
from .catlog_trick.ram import RAM
from .catlog_trick.scater import SCateR
from .catlog_trick.slopecater import SlopeCateR
from .control_variates.double_cv import DoubleCV
from .control_variates.muprop import MuProp
from .control_variates.rebar import REBAR
from .control_variates.relax import RELAX
from .control_variates.rodeo import RODEO
from .coupled_draws.arm import ARM
from .coupled_draws.arms import ARMS
from .coupled_draws.arsm import ARSM
from .coupled_draws.carms import CARMS
from .coupled_draws.disarm import DisARM
from .coupled_draws.disarm_tree import DisARMTree
from .exact import Exact
from .relaxations.darn import DARN
from .relaxations.direct_optimisation import DirectOptimisation
from .relaxations.gumbel_rao import GumbelRao
from .relaxations.gumbel_softmax import GumbelSoftmax
from .relaxations.imle import IMLE
from .relaxations.reinmax import ReinMax
from .relaxations.straight_through import StraightThrough
from .score_function.bbvi import BBVI
from .score_function.nvil import NVIL
from .score_function.reinforce import MovingAverageBaseline, Reinforce
from .score_function.rloo import RLOO
from .score_function.vimco import VIMCO
from .sets.mapo import MAPO
from .sets.sum_and_sample import SumAndSample
from .sets.unordered_set import UnorderedSet

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
    "MovingAverageBaseline",
    "MuProp",
    "ReinMax",
    "Reinforce",
    "SCateR",
    "SlopeCateR",
    "StraightThrough",
    "SumAndSample",
    "UnorderedSet",
]
