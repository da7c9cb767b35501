//! Bugs that the simulated world must find. They measure how strong it is (docs/testing.md).
//!
//! Only the feature `planted` has them; without it [`is`] is always false, and the compiler drops
//! what depends on it.

/// A bug.
#[allow(missing_docs)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Bug {
    GivesBackBeforeCommit = 1,
    GivesBackBeforeApplied,
    IgnoresPins,
    LeavesGateOpen,
    LeavesGateOpenToReads,
    TellsNoKernel,
    TellsNoKernelOfStrongerWish,
    EvictsUnknownToKernel,
    KernelForgetsBeforeAnswers,
    ForgetsEarlyRecall,
    IgnoresNumbers,
    IgnoresRecallOfUnknownFile,
    GrantsBeforeGivenBack,
    DowngradeKeepsWrite,
    DowngradeFreesAll,
    CreatedIsNotRecorded,
    CreatedIsNotRecalled,
    RootIsNotRecorded,
    IgnoresOpenElsewhere,
    ForgetsToldOpen,
    ForgetsCloseBeforeApplied,
    WaitsWithPins,
    BatchWaits,
    BatchWaitsWithPins,
    InstallReplaces,
    InstallsRemoved,
    RepeatedRecallFreesNewer,
    ExpelsBeforeRollForward,
    ExpelKeepsOpens,
    GiveBackWakesNobody,
    RemovalWakesNobody,
    AccessTimeUnderRead,
    SetattrUnderRead,
    UnlinkUnderRead,
    RenameTargetUnderRead,
    ListsClosingInodes,
    ForgetsDirtyCut,
    PrepareKeepsToken,
    RecalledIsLeft,
    OrphansLackCached,
    InstallsOldGrants,
    HoldingsLackTokens,
    HoldingsLackRemoved,
    HoldingsLackOpen,
    RestoredAreRead,
    LivingLogsComeLast,
    ClaimsAreIgnored,
    ClaimantsGoOn,
    LateTakesCount,
    MovesForgetLogs,
    MovesBeforeRequestsEnd,
    GlimpseIsOld,
    GlimpseIsHeld,
    GlimpseIsKept,
    GlimpseTakesAnyAnswer,
    GlimpseNeedsNoName,
    CopiesCountAlways,
    CopiesAreNoCut,
}

#[cfg(feature = "planted")]
static PLANTED: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);

/// True if the bug is planted.
#[inline(always)]
pub fn is(bug: Bug) -> bool {
    #[cfg(feature = "planted")]
    return PLANTED.load(std::sync::atomic::Ordering::Relaxed) == bug as u32;
    #[cfg(not(feature = "planted"))]
    {
        let _ = bug;
        false
    }
}

/// Plants the bug with this number, 0 for none.
#[cfg(feature = "planted")]
pub fn plant(number: u32) {
    PLANTED.store(number, std::sync::atomic::Ordering::Relaxed);
}
