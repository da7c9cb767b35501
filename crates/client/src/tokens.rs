//! Tokens at the client: claims, pins, and recalls (docs/core.md#tokens).
//!
//! - A **claim** asks a manager for a token. A client has at most one claim on its way for each
//!   file, so answers cannot overtake each other.
//! - A **glimpse** is a claim for attributes only. It brings a token if that costs no other client
//!   anything, and otherwise what the client says that changes the file. That counts for one
//!   attempt.
//! - A **pin** keeps a token from being given back while an operation that needs it also waits for
//!   something else. An operation that waits for a token pins only tokens of files with smaller
//!   ids. So operations at two clients never wait for each other's pins. An operation that waits
//!   for space, or for managers that lag behind, pins nothing.
//! - A **recall** waits until no operation pins the token, and a moment longer for a directory that
//!   the client has just been given and is busy with. Then the *gate* closes: no operation uses
//!   the token from here on. The client makes its changes durable, waits until the managers have
//!   applied them and the kernel has forgotten what it cached, and gives the token back.

use crate::Client;
use crate::core::{Core, from_manager};
use crate::inode::Inode;
use crate::state::{Attempt, ClientState};
use crate::touched::{Needs, Seen};
use manager::api::{
    GiveBack, Glimpse, GlimpseAnswer, GlimpseQuestion, HeldToken, ManagerError, TokenHolder, TokenRecall,
};
use manager::planted::{self, Bug};
use manager::token::Mode;
use policy::space::Purpose;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;
use types::{BoxFuture, FileId, FsError, ManagerId};
use vfs::kernel::Recalled;

/// Pause before a client whose log cannot be written looks at a recall again.
const LOG_PAUSE: Duration = Duration::from_millis(200);
/// How long a client may change a directory's names before it answers a recall, while operations
/// keep coming. Otherwise clients that make files in one directory would hand it over for each.
const DIRECTORY_TIME_MIN: Duration = Duration::from_millis(20);
/// Operations keep coming if at least one comes in this time.
const DIRECTORY_LOOK_PERIOD: Duration = Duration::from_millis(1);

/// What a client knows of its tokens besides the inodes that they are for.
#[derive(Default)]
pub(crate) struct Tokens {
    /// How many operations pin a token.
    pins: HashMap<FileId, u32>,
    /// Claims on their way.
    claims: HashMap<FileId, ClaimUnderWay>,
    /// How many claims have been granted.
    grant_count: u64,
    /// Recalls that the client is about to answer.
    recalled: HashMap<FileId, TokenRecall>,
    /// How many recalls of removed files wait until the removal is durable.
    recalled_removals: usize,
    /// The terms of the managers that were told what the client holds. Others know it anyway.
    terms: BTreeMap<ManagerId, u64>,
    /// Files whose managers were told that a program here has them open, without a token.
    told_open: HashSet<FileId>,
}

/// A claim on its way.
#[derive(Default)]
struct ClaimUnderWay {
    /// A recall that has overtaken its answer.
    early: Option<TokenRecall>,
    /// It asks for attributes, and takes a token only if that costs no other client anything.
    is_glimpse: bool,
}

/// What asking for attributes came to.
pub(crate) enum Look {
    /// Another client that changes the file has told them.
    Seen(Seen),
    /// The attempt may find everything now, or something else that it needs is missing by now.
    Again,
    /// Another client must give its token back first.
    Held,
}

/// What a client holds, for managers that have forgotten it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holdings {
    /// Its tokens, and the files that a program has open without one.
    pub tokens: Vec<HeldToken>,
    /// The epoch in which it writes its log.
    pub epoch: u32,
    /// All segments of its log up to this one are durable.
    pub committed_seq: u64,
}

impl Tokens {
    /// How many files are about to leave memory.
    pub(crate) fn leaving(&self) -> usize {
        self.recalled.values().filter(|recall| recall.wanted == Mode::Write).count()
    }

    /// True if the inode must stay in memory.
    pub(crate) fn keeps(&self, id: FileId) -> bool {
        self.pins.contains_key(&id) || self.claims.contains_key(&id) || self.recalled.contains_key(&id)
    }

    /// True if a recall is not answered yet.
    pub(crate) fn are_recalled(&self) -> bool {
        !self.recalled.is_empty() || self.recalled_removals > 0
    }

    /// How many claims have been granted.
    pub(crate) fn grant_count(&self) -> u64 {
        self.grant_count
    }

    /// The last program here has closed a file. True if its manager counts on being told.
    pub(crate) fn closes(&mut self, id: FileId) -> bool {
        self.told_open.remove(&id)
    }
}

/// The tokens that one operation has pinned. They are unpinned when this is dropped.
pub(crate) struct Pins {
    core: Arc<Core>,
    pinned: Needs,
}

impl Pins {
    pub(crate) fn new(core: &Arc<Core>) -> Pins {
        Pins { core: core.clone(), pinned: Needs::new() }
    }

    /// Pins those of the tokens that the client has.
    pub(crate) fn pin_held(&mut self, needs: &Needs) {
        let core = self.core.clone();
        let s = &mut *core.state.lock();
        for (&id, &mode) in needs {
            if !s.tokens.recalled.contains_key(&id) && s.inodes.get(&id).is_some_and(|inode| inode.allows(mode)) {
                self.pin(s, id, mode);
            }
        }
    }

    fn pin(&mut self, s: &mut ClientState, id: FileId, mode: Mode) {
        match self.pinned.insert(id, mode) {
            Some(before) => {
                self.pinned.insert(id, before.max(mode));
            }
            None => *s.tokens.pins.entry(id).or_default() += 1,
        }
    }

    fn has(&self, id: FileId, mode: Mode) -> bool {
        self.pinned.get(&id).is_some_and(|pinned| *pinned >= mode)
    }

    /// Unpins all files from `from` on.
    pub(crate) fn unpin_from(&mut self, from: FileId) {
        let given_up = self.pinned.split_off(&from);
        if given_up.is_empty() {
            return;
        }
        let s = &mut *self.core.state.lock();
        for id in given_up.into_keys() {
            if let Some(count) = s.tokens.pins.get_mut(&id) {
                *count -= 1;
                if *count == 0 {
                    s.tokens.pins.remove(&id);
                }
            }
        }
        self.core.tokens_changed();
    }

    /// Pins all of `needs`, and takes the tokens that the client lacks. `missed` is the one that
    /// the attempt stopped at. Ends with the file that is not there any more, if there is one; then
    /// the others may be pinned or not.
    pub(crate) async fn take(&mut self, needs: &Needs, missed: FileId) -> Result<(), (FileId, FsError)> {
        for (&id, &mode) in needs {
            // What is pinned and missed all the same, another operation here has removed.
            if !self.has(id, mode) || id == missed {
                // An operation waits only while what it pins comes before what it waits for.
                if !planted::is(Bug::WaitsWithPins) {
                    self.unpin_from(id);
                }
                self.take_one(id, mode).await.map_err(|e| (id, e))?;
            }
        }
        Ok(())
    }

    async fn take_one(&mut self, id: FileId, mode: Mode) -> Result<(), FsError> {
        let core = self.core.clone();
        loop {
            let mut changed = core.tokens_change.subscribe();
            let may_claim = {
                let s = &mut *core.state.lock();
                if core.is_over() {
                    return Err(FsError::Io);
                }
                if s.removals.contains(&id) || s.gone.contains_key(&id) {
                    return Err(FsError::Stale);
                }
                let is_free = !s.tokens.recalled.contains_key(&id);
                if is_free && s.inodes.get(&id).is_some_and(|inode| inode.allows(mode)) {
                    self.pin(s, id, mode);
                    return Ok(());
                }
                is_free && s.tokens.begin_claim(id, false)
            };
            if !may_claim {
                // The sender lives as long as the core.
                let _ = changed.changed().await;
                continue;
            }
            core.inode_fetch_count.fetch_add(1, Relaxed);
            let opened = Claim::open(&core, id, mode).answered().await;
            if !matches!(core.install(id, opened, |s| self.pin(s, id, mode))?, Installed::Token) {
                continue;
            }
            match core.state.lock().inodes.get(&id) {
                Some(inode) if inode.allows(mode) => return Ok(()),
                // A weaker token than wanted was granted: never by a manager that is whole.
                Some(inode) if !inode.closing => return Err(FsError::Io),
                // The client was giving back a weaker token when this came, and gives back both.
                _ => {}
            }
            self.unpin_from(id);
        }
    }
}

impl Pins {
    /// Asks for the attributes of a file, after an attempt that had `needs`. Ends with the file
    /// that is not there any more, if there is one.
    pub(crate) async fn glimpse(&mut self, needs: &Needs, id: FileId) -> Result<Look, (FileId, FsError)> {
        let core = self.core.clone();
        let mut others = needs.clone();
        others.remove(&id);
        self.pin_held(&others);
        let has_others = others.iter().all(|(&file, &mode)| self.has(file, mode));
        if !has_others && !planted::is(Bug::GlimpseNeedsNoName) {
            // A name must mean the file all the time, for the attributes to belong to it.
            self.take(&others, id).await?;
            return Ok(Look::Again);
        }
        let is_asking = {
            let s = &mut *core.state.lock();
            if s.removals.contains(&id) || s.gone.contains_key(&id) {
                return Err((id, FsError::Stale));
            }
            if s.inodes.get(&id).is_some_and(|inode| inode.allows(Mode::Read)) {
                return Ok(Look::Again);
            }
            match s.tokens.claims.get(&id) {
                Some(claim) if !claim.is_glimpse => return Ok(Look::Held),
                _ => !s.tokens.recalled.contains_key(&id) && s.tokens.begin_claim(id, true),
            }
        };
        if !is_asking {
            self.unpin_from(id);
            core.wait_unclaimed(id).await;
            return Ok(Look::Again);
        }
        core.inode_fetch_count.fetch_add(1, Relaxed);
        let asked = core.managers.of(id).glimpse(core.config.id, id).into_future();
        let answer = Claim { core: core.clone(), id, asked: Some(asked) }.answered().await;
        // The answer never waits for another client's pins. So it does not matter what is pinned.
        let installed = core.install(id, answer, |s| self.pin(s, id, Mode::Read));
        Ok(match installed.map_err(|e| (id, e))? {
            Installed::Seen(seen) => Look::Seen(seen),
            Installed::Token | Installed::Void => Look::Again,
            Installed::Held => Look::Held,
        })
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        self.unpin_from(FileId::new(0));
    }
}

impl Tokens {
    /// Notes that a claim is on its way, unless one is already.
    fn begin_claim(&mut self, id: FileId, is_glimpse: bool) -> bool {
        let is_first = !self.claims.contains_key(&id);
        if is_first {
            self.claims.insert(id, ClaimUnderWay { early: None, is_glimpse });
        }
        is_first
    }
}

/// A claim on its way. If its caller stops waiting, a task goes on, because the manager counts the
/// token as granted once it has answered.
struct Claim {
    core: Arc<Core>,
    id: FileId,
    asked: Option<BoxFuture<Result<Glimpse, ManagerError>>>,
}

impl Claim {
    fn open(core: &Arc<Core>, id: FileId, mode: Mode) -> Claim {
        let asked = core.managers.of(id).open(core.config.id, id, mode).into_future();
        let asked: BoxFuture<_> = Box::pin(async move { asked.await.map(|opened| Glimpse::Opened(Box::new(opened))) });
        Claim { core: core.clone(), id, asked: Some(asked) }
    }

    async fn answered(mut self) -> Result<Glimpse, ManagerError> {
        match &mut self.asked {
            Some(asked) => {
                let answer = asked.await;
                self.asked = None;
                answer
            }
            None => Err(ManagerError::Expelled),
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let Some(asked) = self.asked.take() else { return };
        let (core, id) = (self.core.clone(), self.id);
        self.core.host.tasks.spawn(Box::pin(async move {
            let opened = asked.await;
            // Nobody waits for it: an error is of no use either.
            let _ = core.install(id, opened, |_| {});
        }));
    }
}

/// What became of the answer to a claim.
enum Installed {
    /// The token is in memory.
    Token,
    /// A manager answered this that is gone: the claim must be made again.
    Void,
    /// There is no token, but another client has told the attributes.
    Seen(Seen),
    /// Another client must give its token back first.
    Held,
}

impl Core {
    /// Waits until the client neither claims a token on the file nor gives one back.
    async fn wait_unclaimed(&self, id: FileId) {
        loop {
            let mut changed = self.tokens_change.subscribe();
            let is_free = {
                let s = self.state.lock();
                !s.tokens.claims.contains_key(&id) && !s.tokens.recalled.contains_key(&id)
            };
            if is_free || self.is_over() {
                return;
            }
            // The sender lives as long as the core.
            let _ = changed.changed().await;
        }
    }

    /// Wakes everybody who waits for a pin, a claim or a recall to end.
    fn tokens_changed(&self) {
        self.tokens_change.send_modify(|count| *count += 1);
    }

    /// Puts a manager's answer to a claim into memory, and calls `and` in the same instant if it is
    /// a token.
    fn install(
        self: &Arc<Self>,
        id: FileId,
        answer: Result<Glimpse, ManagerError>,
        and: impl FnOnce(&mut ClientState),
    ) -> Result<Installed, FsError> {
        let s = &mut *self.state.lock();
        let early = s.tokens.claims.remove(&id).and_then(|claim| claim.early);
        self.tokens_changed();
        let answer = match answer {
            Err(ManagerError::Held) => return Ok(Installed::Held),
            answer => answer.map_err(from_manager)?,
        };
        let answered_in = match &answer {
            Glimpse::Opened(opened) => opened.grant.term,
            Glimpse::Seen { term, .. } => *term,
        };
        let term = s.tokens.terms.get(&self.managers.manager_of(id));
        if term.is_some_and(|term| *term != answered_in) && !planted::is(Bug::InstallsOldGrants) {
            // The present manager has not heard of it. A recall that has overtaken it is from the
            // former manager, too: the present one knows only what the client listed.
            return Ok(Installed::Void);
        }
        if let Glimpse::Opened(opened) = &answer {
            self.log.learn_order(opened.order);
        }
        if (s.removals.contains(&id) || s.gone.contains_key(&id)) && !planted::is(Bug::InstallsRemoved) {
            return Err(FsError::Stale);
        }
        let opened = match answer {
            Glimpse::Opened(opened) => *opened,
            Glimpse::Seen { inode, .. } => {
                if planted::is(Bug::GlimpseIsHeld) {
                    let held = Inode { mode: Mode::Read, ..Inode::known(*inode, self.config.block_size) };
                    s.inodes.insert(id, held);
                    s.hand.push_back(id);
                }
                return Ok(Installed::Seen(Seen { inode: *inode, grant_count: s.tokens.grant_count }));
            }
        };
        let grant = opened.grant;
        s.tokens.grant_count += 1;
        if planted::is(Bug::InstallReplaces) && s.inodes.get(&id).is_some_and(|inode| !inode.listed) {
            s.inodes.remove(&id);
        }
        match s.inodes.get_mut(&id) {
            // The token was never given back, so memory is at least as new as the answer.
            Some(inode) if inode.grant < grant.number => {
                (inode.mode, inode.grant) = (inode.mode.max(grant.mode), grant.number);
                inode.open_elsewhere = grant.open_elsewhere;
                inode.granted_at = self.host.clock.now();
            }
            Some(_) => {}
            None => {
                self.make_room(s);
                let granted_at = self.host.clock.now();
                s.inodes.insert(id, Inode { granted_at, ..Inode::opened(opened, self.config.block_size) });
                s.hand.push_back(id);
            }
        }
        s.tokens.told_open.remove(&id);
        and(s);
        if let Some(recall) = early
            && recall.number >= grant.number
            && !planted::is(Bug::ForgetsEarlyRecall)
        {
            self.begin_recall(s, recall);
        }
        Ok(Installed::Token)
    }

    /// What the client holds of the files of managers that are in a new term. Their grants of
    /// earlier terms that are still on their way do not count any more.
    pub(crate) fn holdings(&self, term: u64, of: impl Fn(ManagerId) -> bool) -> Holdings {
        let s = &mut *self.state.lock();
        s.tokens.terms.extend(self.managers.ids().filter(|id| of(*id)).map(|id| (id, term)));
        let committed_seq = self.log.committed_seq().unwrap_or(0);
        // No other client can know a file that is in no cut yet.
        let known = s.inodes.iter().filter(|(_, inode)| inode.logged && !planted::is(Bug::HoldingsLackTokens));
        let held = known.map(|(&file, inode)| HeldToken { file, mode: Some(inode.mode), number: inode.grant });
        // The managers learn of these removals later. Of others they read in the log.
        let unknown = s.gone.iter().filter(|(_, seq)| **seq > committed_seq).map(|(file, _)| file);
        let removed = s.removals.iter().chain(unknown);
        let removed = removed.filter(|_| !planted::is(Bug::HoldingsLackRemoved));
        let removed = removed.map(|&file| HeldToken { file, mode: Some(Mode::Write), number: 0 });
        let open = s.tokens.told_open.iter().filter(|_| !planted::is(Bug::HoldingsLackOpen));
        let open = open.map(|&file| HeldToken { file, mode: None, number: 0 });
        let tokens = held.chain(removed).chain(open).filter(|token| of(self.managers.manager_of(token.file)));
        Holdings { tokens: tokens.collect(), epoch: self.log.epoch(), committed_seq }
    }

    /// Fetches inodes to read them, with one message to each manager concerned, and one more for
    /// each file that another client must give back first.
    pub(crate) async fn fetch_inodes(self: &Arc<Self>, ids: &[FileId]) {
        let mut wanted: BTreeMap<ManagerId, Vec<FileId>> = BTreeMap::new();
        {
            let s = &mut *self.state.lock();
            for &id in ids.iter().collect::<BTreeSet<_>>() {
                let is_known = s.inodes.contains_key(&id) || s.removals.contains(&id) || s.gone.contains_key(&id);
                if !is_known && s.tokens.begin_claim(id, false) {
                    wanted.entry(self.managers.manager_of(id)).or_default().push(id);
                }
            }
        }
        let ask = |files: Vec<FileId>| -> BoxFuture<()> {
            self.inode_fetch_count.fetch_add(files.len() as u64, Relaxed);
            let asked = self.managers.of(files[0]).open_many(self.config.id, &files, Mode::Read).into_future();
            let core = self.clone();
            Box::pin(async move {
                let answers = match asked.await {
                    Ok(answers) => answers,
                    Err(e) => vec![Err(e); files.len()],
                };
                let mut held: Vec<BoxFuture<()>> = Vec::new();
                for (id, opened) in files.into_iter().zip(answers) {
                    if opened == Err(ManagerError::Held) {
                        let claim = Claim::open(&core, id, Mode::Read);
                        held.push(Box::pin(async move {
                            let (core, opened) = (claim.core.clone(), claim.answered().await);
                            let _ = core.install(id, opened, |_| {});
                        }));
                    } else {
                        // A file that is gone is listed without attributes.
                        let opened = opened.map(|opened| Glimpse::Opened(Box::new(opened)));
                        let _ = core.install(id, opened, |_| {});
                    }
                }
                host::join_all(held).await;
            })
        };
        // Tasks of their own: claims must be answered, though nobody waits for them any more.
        let (tell, told) = tokio::sync::oneshot::channel();
        let asked = host::join_all(wanted.into_values().map(ask).collect());
        self.host.tasks.start(Box::pin(async move {
            asked.await;
            let _ = tell.send(());
        }));
        let _ = told.await;
    }

    /// Answers a recall, now or when the client can.
    fn recalled(self: &Arc<Self>, s: &mut ClientState, recall: TokenRecall) {
        let grant = s.inodes.get(&recall.file).map(|inode| inode.grant);
        if let Some(claim) = s.tokens.claims.get_mut(&recall.file)
            && grant.is_none_or(|grant| grant < recall.number)
        {
            // It is about a grant whose answer has not come yet.
            if claim.early.is_none_or(|early| early < recall) {
                claim.early = Some(recall);
            }
            return;
        }
        match grant {
            Some(grant) if recall.number >= grant => self.begin_recall(s, recall),
            // The client has given that token back, and has a newer one.
            Some(grant) => {
                if planted::is(Bug::RepeatedRecallFreesNewer) {
                    let back = GiveBack { file: recall.file, number: grant, keep: None, is_open: false };
                    self.managers.of(recall.file).give_back(self.config.id, back);
                }
            }
            None => self.give_nothing(s, recall),
        }
    }

    /// Answers a question for the attributes of a file. If nothing here changes the file, the
    /// client only keeps the right to read: so that no more questions come.
    fn asked(self: &Arc<Self>, s: &mut ClientState, question: GlimpseQuestion) {
        let file = question.file;
        let inode = s.inodes.get(&file).filter(|inode| inode.mode == Mode::Write);
        if let Some(inode) = inode
            && !s.tokens.keeps(file)
            && !s.is_changing(file, inode)
        {
            let recall = TokenRecall { file, number: inode.grant, wanted: Mode::Read };
            return self.begin_recall(s, recall);
        }
        let inode = inode.map(|inode| Box::new(inode.record));
        self.managers.of(file).glimpsed(self.config.id, GlimpseAnswer { question, inode });
    }

    /// Answers the recall of a file that is not in memory. If the client has removed the file, the
    /// managers hear of that now, and free its tokens.
    fn give_nothing(self: &Arc<Self>, s: &mut ClientState, recall: TokenRecall) {
        let (file, number) = (recall.file, recall.number);
        if planted::is(Bug::IgnoresRecallOfUnknownFile) {
            return;
        }
        let is_open = s.opens.contains_key(&file);
        if is_open {
            s.tokens.told_open.insert(file);
        }
        let (is_removed, last_cut) = (s.removals.contains(&file), s.last_cut);
        let removed_by = s.gone.get(&file).copied().or(is_removed.then_some(last_cut + 1));
        let back = GiveBack { file, number, keep: None, is_open };
        let Some(seq) = removed_by else {
            // At once: it must not come after a claim that is made later.
            return self.managers.of(file).give_back(self.config.id, back);
        };
        s.tokens.recalled_removals += 1;
        let core = self.clone();
        self.host.tasks.spawn(Box::pin(async move {
            let known = core.make_known(seq).await;
            core.state.lock().tokens.recalled_removals -= 1;
            if known.is_ok() {
                core.managers.of(file).give_back(core.config.id, back);
            }
        }));
    }

    /// Has the client give a token back. A recall that is under way already takes in a stronger
    /// wish.
    pub(crate) fn begin_recall(self: &Arc<Self>, s: &mut ClientState, recall: TokenRecall) {
        if let Some(known) = s.tokens.recalled.get_mut(&recall.file) {
            known.wanted = known.wanted.max(recall.wanted);
            return;
        }
        s.tokens.recalled.insert(recall.file, recall);
        self.host.tasks.spawn(Box::pin(self.clone().answer_recall(recall.file)));
    }

    /// Waits while operations keep changing a directory that this client was given only just now.
    async fn use_awhile(&self, file: FileId) {
        loop {
            {
                let s = &mut *self.state.lock();
                let Some(inode) = s.inodes.get_mut(&file) else { return };
                let is_new = self.host.clock.now() < inode.granted_at + DIRECTORY_TIME_MIN;
                let is_used = inode.used || s.tokens.pins.contains_key(&file);
                if inode.directory.is_none() || inode.mode < Mode::Write || !is_new || !is_used {
                    return;
                }
                inode.used = false;
            }
            self.host.clock.sleep(DIRECTORY_LOOK_PERIOD).await;
        }
    }

    async fn answer_recall(self: Arc<Self>, file: FileId) {
        self.use_awhile(file).await;
        let Some((seq, is_directory)) = self.close_gate(file).await else {
            if !planted::is(Bug::RecalledIsLeft) {
                let s = &mut *self.state.lock();
                if let Some(recall) = s.tokens.recalled.remove(&file) {
                    self.give_nothing(s, recall);
                }
                self.tokens_changed();
            }
            return;
        };
        let mut has_forgotten = false;
        loop {
            let wanted = self.state.lock().tokens.recalled.get(&file).map(|recall| recall.wanted);
            if wanted == Some(Mode::Write)
                && !has_forgotten
                && !planted::is(Bug::TellsNoKernel)
                && let Some(kernel) = self.kernel.get()
            {
                kernel.forget(Recalled { files: vec![file], names: is_directory }).await;
            }
            has_forgotten |= wanted == Some(Mode::Write);
            if !planted::is(Bug::GivesBackBeforeCommit) && self.make_known(seq).await.is_err() {
                return;
            }
            let s = &mut *self.state.lock();
            let Some(recall) = s.tokens.recalled.get(&file).copied() else { return };
            if recall.wanted == Mode::Write && !has_forgotten && !planted::is(Bug::TellsNoKernelOfStrongerWish) {
                continue;
            }
            self.give(s, recall);
            return;
        }
    }

    /// Waits until nobody pins the token, and lets no operation use it from then on. Returns the
    /// cut with which the file's changes are in the log, and whether it is a directory. `None` if
    /// the client has ended, or has removed the file.
    async fn close_gate(self: &Arc<Self>, file: FileId) -> Option<(u64, bool)> {
        loop {
            let mut changed = self.tokens_change.subscribe();
            {
                let s = &mut *self.state.lock();
                if self.is_over() {
                    return None;
                }
                if !s.tokens.pins.contains_key(&file) || planted::is(Bug::IgnoresPins) {
                    let last_cut = s.last_cut;
                    let inode = s.inodes.get_mut(&file)?;
                    inode.closing = !planted::is(Bug::LeavesGateOpen);
                    let seq =
                        if inode.listed && !planted::is(Bug::ForgetsDirtyCut) { last_cut + 1 } else { inode.last_cut };
                    return Some((seq, inode.directory.is_some()));
                }
            }
            let _ = changed.changed().await;
        }
    }

    /// Makes everything up to this cut durable, and waits until the managers have applied it. While
    /// the log cannot be written it tries again. Fails if the client has ended.
    async fn make_known(self: &Arc<Self>, seq: u64) -> Result<(), FsError> {
        loop {
            if self.is_over() {
                return Err(FsError::Io);
            }
            if self.state.lock().applied >= seq {
                return Ok(());
            }
            match self.commit().await {
                Ok(()) => {
                    if !planted::is(Bug::GivesBackBeforeApplied) {
                        self.wait_applied(seq).await;
                    }
                    return if self.is_over() { Err(FsError::Io) } else { Ok(()) };
                }
                Err(_) => self.host.clock.sleep(LOG_PAUSE).await,
            }
        }
    }

    /// Gives the token back, or weakens it. The changes under it are known to the managers.
    fn give(self: &Arc<Self>, s: &mut ClientState, recall: TokenRecall) {
        let file = recall.file;
        s.tokens.recalled.remove(&file);
        let Some(inode) = s.inodes.get_mut(&file) else { return };
        let number = inode.grant.max(recall.number);
        let keep = (recall.wanted == Mode::Read).then_some(Mode::Read);
        let is_open = s.opens.contains_key(&file);
        let is_abandoned = keep.is_none() && inode.record.nlink == 0 && !is_open;
        match keep {
            Some(mode) => {
                if !planted::is(Bug::DowngradeKeepsWrite) {
                    inode.mode = mode;
                }
                inode.closing = false;
            }
            None => {
                s.inodes.remove(&file);
                if is_open && !planted::is(Bug::ForgetsToldOpen) {
                    s.tokens.told_open.insert(file);
                }
            }
        }
        self.managers.of(file).give_back(self.config.id, GiveBack { file, number, keep, is_open });
        self.tokens_changed();
        if is_abandoned && !planted::is(Bug::ForgetsCloseBeforeApplied) {
            // A client that had it open may have closed it before the managers knew that it has no
            // name.
            self.remove_if_closed(file);
        }
    }

    /// Tells the manager that no program here has the file open, and removes the file if it has no
    /// name and nobody else has it open.
    fn remove_if_closed(self: &Arc<Self>, id: FileId) {
        let core = self.clone();
        self.host.tasks.spawn(Box::pin(async move {
            let asked = core.managers.of(id).closed(core.config.id, id);
            if asked.await == Ok(true) {
                core.remove_orphan(id).await;
            }
        }));
    }

    /// A file without a name has lost its last handle here: removes it, or leaves it to a client
    /// that has it open.
    pub(crate) fn abandoned(self: &Arc<Self>, s: &mut ClientState, id: FileId) {
        let told_open = s.tokens.closes(id);
        let Some(inode) = s.inodes.get(&id) else {
            if told_open {
                self.remove_if_closed(id);
            }
            return;
        };
        if inode.record.nlink > 0 {
            return;
        }
        if inode.allows(Mode::Write) && (!inode.open_elsewhere || planted::is(Bug::IgnoresOpenElsewhere)) {
            s.remove_if_unused(id, self.host.clock.now());
        } else if inode.open_elsewhere {
            // Whoever has it open must be able to remove it.
            let recall = TokenRecall { file: id, number: inode.grant, wanted: Mode::Write };
            self.begin_recall(s, recall);
        } else {
            let core = self.clone();
            self.host.tasks.spawn(Box::pin(async move { core.remove_orphan(id).await }));
        }
    }

    /// Removes a file that has no name, unless a program has it open.
    pub(crate) async fn remove_orphan(self: &Arc<Self>, id: FileId) {
        let attempt = move |core: &Arc<Core>| -> Attempt<()> {
            let s = &mut *core.begin();
            s.writable(id)?;
            core.admit(s, 0, Purpose::Remove)?;
            if !s.opens.contains_key(&id) {
                core.abandoned(s, id);
            }
            Ok(())
        };
        let removed = self.answer(attempt(self), || attempt).await;
        if let Err(e) = removed
            && e != FsError::Stale
        {
            tracing::debug!(%id, "a file without a name stays for the next start: {e}");
        }
    }

    /// True if the client was stopped.
    pub(crate) fn is_over(&self) -> bool {
        self.stopped.load(SeqCst)
    }

    /// How long the client's lease lasts; `None` if it has no lease because no other client can
    /// want its tokens.
    pub(crate) fn rest_of_lease(&self) -> Option<Duration> {
        let until = Duration::from_nanos(self.config.lease_until.as_ref()?.load(SeqCst));
        Some(until.saturating_sub(self.host.clock.now()))
    }
}

impl TokenHolder for Client {
    fn recall(&self, recalls: Vec<TokenRecall>) {
        recalls.into_iter().for_each(|recall| self.core.recalled(&mut self.core.state.lock(), recall));
    }

    fn glimpse(&self, question: GlimpseQuestion) {
        self.core.asked(&mut self.core.state.lock(), question);
    }
}
