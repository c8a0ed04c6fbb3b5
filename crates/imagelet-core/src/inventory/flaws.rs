//! Deliberate mistakes, by which the model test shows that it would see them; outside of tests there are none.

/// One mistake that the rules of asking and removing must not make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// Who asks leases nothing.
    NoLease,
    /// A lease is given on an answer that a removal has overtaken.
    OldAnswerBelieved,
    /// Who asks during a removal is not made to wait for it.
    #[cfg(test)]
    RemovalNotMarked,
    /// An empty list of containers is believed at once.
    EmptyListBelieved,
    /// An image missing its last container is believed unused at once.
    HalfListBelieved,
    /// Leases end with the process.
    #[cfg(test)]
    LeasesForgotten,
    /// Any new container ends any lease of its image.
    #[cfg(test)]
    AnyContainerServes,
    /// A pass that ran during the last question does not count.
    NewestPassIgnored,
    /// Pins are not asked about again.
    PinsNotAskedAgain,
    /// An image that somebody works with may go.
    #[cfg(test)]
    HoldsIgnored,
}

/// The mistakes that one inventory makes.
#[cfg(not(test))]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flaws;

#[cfg(not(test))]
impl Flaws {
    #[expect(clippy::unused_self, clippy::trivially_copy_pass_by_ref, reason = "as in tests")]
    pub(super) fn have(&self, _flaw: Flaw) -> bool {
        false
    }
}

/// The mistakes that one inventory makes.
#[cfg(test)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flaws(Option<Flaw>);

#[cfg(test)]
impl Flaws {
    pub(super) fn only(flaw: Option<Flaw>) -> Self {
        Self(flaw)
    }

    pub(super) fn have(self, flaw: Flaw) -> bool {
        self.0 == Some(flaw)
    }
}
