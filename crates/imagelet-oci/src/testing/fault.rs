//! What a fault does: at which place of a pull, how often, and in which way.

use imagelet_core::error::{ErrorClass, Stage};

/// A named fault of a registry, and what a pull is to report that has no other host.
#[derive(Clone, Copy, Debug)]
pub struct RegistryFault {
    /// The name, unique in [`FAULTS`](super::FAULTS).
    pub name: &'static str,
    /// The error of a pull whose only host has this fault; `None`: the pull succeeds.
    pub expected: Option<(ErrorClass, Stage)>,
    pub(super) listens: Listens,
    pub(super) scripts: &'static [Script],
}

impl RegistryFault {
    pub(super) const fn heals(name: &'static str, scripts: &'static [Script]) -> Self {
        Self { name, expected: None, listens: Listens::Plainly, scripts }
    }

    pub(super) const fn fails(
        name: &'static str,
        (class, stage): (ErrorClass, Stage),
        scripts: &'static [Script],
    ) -> Self {
        Self { name, expected: Some((class, stage)), listens: Listens::Plainly, scripts }
    }

    pub(super) const fn listening(self, listens: Listens) -> Self {
        Self { listens, ..self }
    }
}

/// How connections are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Listens {
    Plainly,
    /// The port is bound, and no server listens.
    Never,
    /// The queue of connections is full: the kernel drops further attempts.
    Full,
    Encrypted(Certificate),
    /// The address is named with `https`, and these bytes answer a handshake; `None`: silence.
    Handshake(Option<&'static [u8]>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Certificate {
    Expired,
    OtherName,
    /// No authority is configured for it.
    Unknown,
    /// The client has to show a certificate, too.
    ClientWanted,
}

/// One step of a fault.
#[derive(Clone, Copy, Debug)]
pub(super) struct Script {
    pub(super) place: Place,
    pub(super) times: Times,
    pub(super) act: Act,
}

pub(super) const fn once(place: Place, act: Act) -> Script {
    times(1, place, act)
}

pub(super) const fn times(count: u32, place: Place, act: Act) -> Script {
    Script { place, times: Times::First(count), act }
}

pub(super) const fn always(place: Place, act: Act) -> Script {
    times(u32::MAX, place, act)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Times {
    First(u32),
    /// The request of this number in each group of so many.
    Every(u32, u32),
}

/// Which requests a step is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// All requests, before any authorization is checked.
    Any,
    /// Requests without a valid token.
    Challenge,
    Token,
    Manifest,
    Config,
    /// The first layer.
    Layer,
    OtherContent,
    /// The origin to which [`Act::Redirect`] leads.
    Storage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    Silence,
    Close,
    Reset,
    /// These bytes instead of a response, then the end of the connection.
    Bytes(&'static [u8]),
    HeadStall,
    HeadTrickle,
    HeadHuge,
    Informational,
    Status(u16),
    /// A status with one header. `{self}`, `{storage}`, `{path}`, `{now}` and `{long}` are replaced in its value.
    StatusWith(u16, &'static str, &'static str),
    /// The challenge of the registry's own token service.
    Challenge,
    /// The same, and no earlier token is valid any more.
    ExpireTokens,
    /// Like [`Act::StatusWith`] with a `Location`.
    Redirect(&'static str),
    /// The right response with another header.
    Header(&'static str, &'static str),
    /// Another body with this content type.
    Page(&'static str, &'static [u8]),
    /// A body of so many spaces.
    Spaces(usize),
    /// The first half of the right body, as if it were all.
    Half,
    /// The right length, other bytes.
    WrongBytes,
    Cut(usize),
    ResetBody(usize),
    Stall(usize),
    DeclareLess,
    DeclareMore,
    Chunked,
    Unmeasured,
    NoContent,
    UnaskedRange,
    IgnoreRange,
    IgnoreRangeAndCut(usize),
    WrongRange,
    Gzip,
    Trickle,
    /// `405` for all but `POST`.
    PostOnly,
}
