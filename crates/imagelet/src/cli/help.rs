//! The help: a screen for each command with `--help`, and all pages with `imagelet help`.

use std::io::{self, Write as _};

use clap::{Arg, ArgAction, CommandFactory as _};

use super::{Cli, kubelet_options, pages};
use imagelet_node::config::has_dumb_terminal;

const GROUPS: [(&str, &[&str]); 7] = [
    ("Images", &["pull", "ensure", "ls", "inspect", "df", "rm", "untag", "verify"]),
    ("Keep and collect", &["gc", "pin", "unpin", "pins"]),
    ("Files", &["mount", "unmount", "export", "import"]),
    ("Registries", &["login", "logout", "doctor"]),
    ("What happened", &["events", "why", "status"]),
    ("Cluster", &["prefetch", "controller"]),
    ("Daemon and shell", &["serve", "install", "config", "completions", "help", "version"]),
];

const OPTIONS: &str = "Options of all commands, before or after the name (`imagelet help` describes them):\n  \
    --endpoint URI, --store DIR, -o table|wide|json|yaml, --log-level LEVEL,\n  \
    --timeout DURATION, --lock-timeout DURATION, -h, --help; -V, --version\n\n";
const EXAMPLE: &str = "Example: imagelet pull --platform linux/arm64 docker.io/library/busybox:1.36";

const SCREEN: &str = "{about}\n\n{usage-heading} {usage}{after-help}";
const WHOLE: &str = "{about}\n\n{usage-heading} {usage}\n\n{all-args}{after-help}";

pub(crate) fn command() -> clap::Command {
    let groups = GROUPS.map(|(title, names)| format!("  {:<18}{}", format!("{title}:"), names.join(", "))).join("\n");
    let pages = pages::titles().map(|(name, title)| format!("\n  {name:<18}{title}")).collect::<Vec<_>>().concat();
    let help = Arg::new("help").short('h').long("help").global(true).action(ArgAction::HelpShort);
    let help = help.help_heading(None::<&'static str>);
    let mut command = kubelet_options::add_options(Cli::command()).arg(help.help("Print a screen of help"));
    // If the variable CI is set, clap prints colours even on a dumb terminal, so they are switched off explicitly.
    if has_dumb_terminal() {
        command = command.color(clap::ColorChoice::Never);
    }
    command
        .mut_subcommands(|one| with_more(one, "imagelet help"))
        .help_template(SCREEN)
        .after_help(format!("Commands:\n{groups}\n\n{OPTIONS}{EXAMPLE}"))
        .after_long_help(format!("Pages of the guide, shown by `imagelet help PAGE`:{pages}\n\n{EXAMPLE}"))
}

/// Adds to a command's help the command line that prints its whole help. `above` is the start of this command line.
fn with_more(command: clap::Command, above: &str) -> clap::Command {
    let help = format!("{above} {}", command.get_name());
    let example = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    command
        .after_help(format!("More, and the options of all commands: {help}\n\n{example}"))
        .after_long_help(example)
        .mut_subcommands(|one| with_more(one, &help))
}

/// Whether `words` name a command or a page of the guide. An empty list names the whole program.
pub(super) fn is_topic(words: &[String]) -> bool {
    find(&mut command(), words).is_some() || page(words).is_some()
}

pub(crate) fn print_help(words: &[String]) -> io::Result<()> {
    let mut whole = command();
    if words.is_empty() {
        whole = whole.help_template(WHOLE);
    }
    whole.build();
    let found = find(&mut whole, words);
    let is_command = found.is_some();
    found.map_or(Ok(()), clap::Command::print_long_help)?;
    let Some(page) = page(words) else { return Ok(()) };
    let mut out = io::stdout().lock();
    if is_command {
        out.write_all(b"\n")?;
    }
    out.write_all(page.as_bytes())
}

fn find<'a>(command: &'a mut clap::Command, words: &[String]) -> Option<&'a mut clap::Command> {
    words.iter().try_fold(command, |command, word| command.find_subcommand_mut(word))
}

fn page(words: &[String]) -> Option<&'static str> {
    if let [name] = words { pages::page(name) } else { None }
}
