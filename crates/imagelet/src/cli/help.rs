//! The help of each command: no longer than a screen with `-h`, with an example at its end.

use clap::CommandFactory as _;

use super::Cli;

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

/// What each command takes, in short.
const OPTIONS: &str = "Options of all commands, before or after the name (`COMMAND --help` describes them):\n  \
    --endpoint URI, --store DIR, -o table|wide|json|yaml, --log-level LEVEL,\n  \
    --timeout DURATION, --lock-timeout DURATION, -h, --help; -V, --version";

/// An example of each command.
const EXAMPLES: [(&str, &str); 34] = [
    ("serve", "imagelet serve --config /etc/imagelet/config.yaml"),
    ("install", "imagelet install --role between --dry-run"),
    ("pull", "imagelet pull --platform linux/arm64 docker.io/library/busybox:1.36"),
    ("ensure", "imagelet ensure -f pod.yaml --secret registry-secret.yaml"),
    ("ls", "imagelet ls --filter unused=true --format '{{.ID}} {{.Size}}'"),
    ("inspect", "imagelet inspect --format '{{json .Config.Env}}' busybox:1.36"),
    ("df", "imagelet df -v"),
    ("rm", "imagelet rm busybox:1.36 sha256:3fbc632167424a6d"),
    ("untag", "imagelet untag registry.example/app:v1"),
    ("gc", "imagelet gc --dry-run --free 10Gi"),
    ("pin", "imagelet pin 'registry.example/base/*'"),
    ("unpin", "imagelet unpin 'registry.example/base/*'"),
    ("pins", "imagelet pins"),
    ("mount", "imagelet mount busybox:1.36 /mnt"),
    ("unmount", "imagelet unmount /mnt"),
    ("export", "imagelet export registry.example/app:v1 app.tar"),
    ("import", "imagelet import --pin app.tar"),
    ("verify", "imagelet verify --repair"),
    ("events", "imagelet events -f --since 2h"),
    ("why", "imagelet why --since 24h registry.example/app:v1"),
    ("login", "imagelet login -u robot --password-stdin registry.example <token"),
    ("logout", "imagelet logout registry.example"),
    ("doctor", "imagelet doctor registry.example/app:v1"),
    ("status", "imagelet status -v"),
    ("top", "imagelet top --once -o json"),
    ("prefetch apply", "imagelet prefetch apply -f images.yaml"),
    ("prefetch status", "imagelet prefetch status -n shop"),
    ("prefetch rm", "imagelet prefetch rm -n shop web"),
    ("prefetch crds", "imagelet prefetch crds"),
    ("controller", "imagelet controller --kubeconfig /etc/kubernetes/admin.conf"),
    ("config check", "imagelet config check /etc/imagelet/config.yaml"),
    ("config show", "imagelet config show --config /etc/imagelet/config.yaml"),
    ("completions", "source <(imagelet completions bash)"),
    ("version", "imagelet version -o json"),
];

/// The commands and flags with their help.
pub(crate) fn command() -> clap::Command {
    let mut command = Cli::command();
    let full = command.get_subcommands().filter(|one| !one.is_hide_set()).map(|one| {
        let about = one.get_about().map(ToString::to_string).unwrap_or_default();
        let aliases = one.get_visible_aliases().collect::<Vec<_>>().join(", ");
        let aliases = if aliases.is_empty() { aliases } else { format!(" (also: {aliases})") };
        aligned(one.get_name(), &format!("{about}{aliases}"))
    });
    let full = full.collect::<Vec<_>>().join("\n");
    let full = format!("Commands:\n{full}\n\n{OPTIONS}\n\n{}", example_of("pull"));
    for (path, _) in EXAMPLES {
        let (first, second) = path.split_once(' ').unwrap_or((path, ""));
        command = command.mut_subcommand(first, |one| {
            if second.is_empty() {
                one.after_help(example_of(path))
            } else {
                one.after_help(example_of(path)).mut_subcommand(second, |two| two.after_help(example_of(path)))
            }
        });
    }
    command.help_template("{about}\n\n{usage-heading} {usage}{after-help}").after_help(grouped()).after_long_help(full)
}

/// A name, and a text beside it in lines of a narrow terminal.
fn aligned(name: &str, text: &str) -> String {
    const WIDTH: usize = 64;
    let (mut lines, mut length) = (format!("  {name:<12} "), 0);
    for word in text.split_whitespace() {
        if length > 0 && length + 1 + word.len() > WIDTH {
            lines.push_str("\n               ");
            length = 0;
        } else if length > 0 {
            lines.push(' ');
            length += 1;
        }
        lines += word;
        length += word.len();
    }
    lines
}

fn grouped() -> String {
    let rows = GROUPS.iter().map(|(title, names)| format!("  {:<18}{}", format!("{title}:"), names.join(", ")));
    let rows = rows.collect::<Vec<_>>().join("\n");
    format!("Commands:\n{rows}\n\n{OPTIONS}\n\n{}", example_of("pull"))
}

fn example_of(path: &str) -> String {
    let example = EXAMPLES.iter().find(|(name, _)| *name == path).map_or("", |(_, example)| example);
    format!("Example: {example}")
}
