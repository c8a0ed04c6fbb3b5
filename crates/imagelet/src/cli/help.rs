//! The help of each command: no longer than a screen with `-h`, with an example at its end.

use clap::CommandFactory as _;

use super::Cli;
use crate::output::wrapped;

/// Columns of what a command does, beside its name in a narrow terminal.
const TEXT_COLUMNS: usize = 64;

/// The commands of the first screen in groups, for `imagelet -h`; `--help` describes each.
const GROUPS: [(&str, &[&str]); 7] = [
    ("Images", &["pull", "ensure", "ls", "inspect", "df", "rm", "untag", "verify"]),
    ("Keep and collect", &["gc", "pin", "unpin", "pins"]),
    ("Files", &["mount", "unmount", "export", "import"]),
    ("Registries", &["login", "logout", "doctor"]),
    ("What happened", &["events", "why", "status", "top"]),
    ("Cluster", &["prefetch", "controller"]),
    ("Daemon and shell", &["serve", "install", "config", "completions", "version"]),
];

/// What each command takes, in short, and an example.
const OPTIONS: &str = "Options of all commands, before or after the name (`COMMAND --help` describes them):\n  \
    --endpoint URI, --store DIR, -o table|wide|json|yaml, --log-level LEVEL,\n  \
    --timeout DURATION, --lock-timeout DURATION, -h, --help; -V, --version\n\n\
    Example: imagelet pull --platform linux/arm64 docker.io/library/busybox:1.36";

/// The commands and flags with their help.
pub(crate) fn command() -> clap::Command {
    let command = Cli::command();
    let described = command.get_subcommands().filter(|one| !one.is_hide_set()).map(|one| {
        let about = one.get_about().map(ToString::to_string).unwrap_or_default();
        let aliases = one.get_visible_aliases().collect::<Vec<_>>().join(", ");
        let aliases = if aliases.is_empty() { aliases } else { format!(" (also: {aliases})") };
        let text = wrapped(&format!("{about}{aliases}"), TEXT_COLUMNS).join("\n               ");
        format!("  {:<12} {text}", one.get_name())
    });
    let described = first_screen(&described.collect::<Vec<_>>());
    let groups = GROUPS.iter().map(|(title, names)| format!("  {:<18}{}", format!("{title}:"), names.join(", ")));
    command
        .help_template("{about}\n\n{usage-heading} {usage}{after-help}")
        .after_help(first_screen(&groups.collect::<Vec<_>>()))
        .after_long_help(described)
}

fn first_screen(commands: &[String]) -> String {
    format!("Commands:\n{}\n\n{OPTIONS}", commands.join("\n"))
}
