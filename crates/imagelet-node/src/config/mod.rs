//! The configuration: its keys, all their defaults, and the source of each value.
//!
//! Sources from weak to strong: defaults, a kubelet's file, imagelet's file, flags. The result is [`Settings`].

mod check;
mod check_gc;
mod check_interfaces;
mod environment;
mod keys_and_defaults;
mod located_yaml;
mod settings;
mod sources;
#[cfg(test)]
mod tests;
mod violations;

pub use self::{
    environment::{Environment, LoginVariables, has_dumb_terminal, is_empty_variable, variable},
    keys_and_defaults::{CriCallers, ImportFolder},
    settings::{Backend, CollectionMode, HttpSettings, KubernetesSettings, RuntimeSettings, Settings, StoreSettings},
    sources::{Source, Sources},
    violations::ConfigError,
};
