//! Where programs have their semaphores: in the kernel, or, through the library, on a server of the same host or of another.
//! What they do is the same, and a transcript of it can be compared.

use std::cell::RefCell;
use std::path::Path;
use std::process::Command;
use std::rc::Rc;

use crate::hosts::Hosts;
use crate::interpreters::Program;
use crate::stepper::{STEPPER, Stepper, preloaded};
use crate::support::{TestServer, first_unused_key};
use crate::until;

/// The semaphores of the kernel or of a server, and one key. Each test has another `serial`, and thus key.
pub struct World {
    semaphores: Semaphores,
    key: i32,
    observer: RefCell<Stepper>,
    transcript: Transcript,
}

enum Semaphores {
    Kernel,
    Server(TestServer),
    /// A server, with programs on other hosts.
    Hosts(Hosts),
}

type Transcript = Rc<RefCell<Vec<String>>>;

/// A console whose answers are part of the transcript.
pub struct Console {
    name: &'static str,
    program: Program,
    transcript: Transcript,
}

impl World {
    /// `None`: this machine does not permit semaphores.
    pub fn of_kernel(serial: u8) -> Option<Self> {
        let world = Self::new(Semaphores::Kernel, serial);
        let probe = world.observer.borrow_mut().ask("get 0 1 0o600");
        let Some(set) = probe.strip_prefix("= ") else {
            crate::interpreters::skipped("this machine does not permit semget");
            return None;
        };
        assert_eq!(world.observer.borrow_mut().ask(format!("ctl {set} 0 IPC_RMID")), "= 0");
        Some(world)
    }

    pub fn of_server(serial: u8) -> Self {
        Self::new(Semaphores::Server(TestServer::start()), serial)
    }

    pub fn of_hosts(hosts: Hosts, serial: u8) -> Self {
        Self::new(Semaphores::Hosts(hosts), serial)
    }

    fn new(semaphores: Semaphores, serial: u8) -> Self {
        let key = first_unused_key() + i32::from(serial);
        let mut observer = semaphores.command(STEPPER.as_ref());
        let observer = semaphores.run(STEPPER.as_ref(), || Stepper::spawn(&mut observer));
        Self { semaphores, key, observer: RefCell::new(observer), transcript: Rc::default() }
    }

    pub fn is_of_server(&self) -> bool {
        !matches!(self.semaphores, Semaphores::Kernel)
    }

    #[track_caller]
    pub fn hosts(&self) -> &Hosts {
        let Semaphores::Hosts(hosts) = &self.semaphores else { panic!("there is one host") };
        hosts
    }

    /// The key, as PHP writes it in messages and as every language reads it.
    pub fn key(&self) -> String {
        format!("{:#x}", self.key)
    }

    /// The key, as the stepper's commands have it.
    pub fn key_number(&self) -> i32 {
        self.key
    }

    /// A program with these semaphores.
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        self.semaphores.command(program.as_ref())
    }

    pub fn stepper(&self) -> Stepper {
        Stepper::spawn(&mut self.command(STEPPER))
    }

    /// A console of PHP, named in the transcript.
    pub fn php(&self, name: &'static str) -> Console {
        self.console(name, self.command("php"), "consoles/console.php")
    }

    pub fn perl(&self, name: &'static str) -> Console {
        self.console(name, self.command("perl"), "consoles/console.pl")
    }

    pub fn console(&self, name: &'static str, interpreter: Command, script: &str) -> Console {
        let program = self.start(interpreter, script, &[]);
        assert_eq!(program.line(), "ready");
        Console { name, program, transcript: Rc::clone(&self.transcript) }
    }

    /// Runs an interpreter, on the host where it belongs.
    pub fn start(&self, interpreter: Command, script: &str, arguments: &[&str]) -> Program {
        let program = interpreter.get_program().to_owned();
        self.semaphores.run(program.as_ref(), || Program::start(interpreter, script, arguments))
    }

    /// The id of the set, as the observer's commands have it.
    #[track_caller]
    pub fn set(&self) -> String {
        let answer = self.observe(&format!("get {} 0 0", self.key));
        answer.strip_prefix("= ").unwrap_or_else(|| panic!("there is a set: {answer}")).to_owned()
    }

    /// The observer's answer to a command.
    pub fn observe(&self, command: &str) -> String {
        self.observer.borrow_mut().ask(command)
    }

    /// The result of `GETVAL`, `GETPID`, `GETNCNT` or `GETZCNT` for a semaphore of the set.
    #[track_caller]
    pub fn number(&self, semaphore: usize, command: &str) -> u32 {
        let answer = self.observe(&format!("ctl {} {semaphore} {command}", self.set()));
        answer.strip_prefix("= ").and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("{answer}"))
    }

    /// How many calls wait for a semaphore to grow.
    #[track_caller]
    pub fn waiting(&self, semaphore: usize) -> u32 {
        self.number(semaphore, "GETNCNT")
    }

    #[track_caller]
    pub fn until_waiting(&self, semaphore: usize, count: u32) {
        until("the calls wait", || self.waiting(semaphore) == count);
    }

    /// The values of the set.
    #[track_caller]
    pub fn values(&self) -> String {
        let answer = self.observe(&format!("ctl {} 0 GETALL", self.set()));
        answer.strip_prefix("= ").unwrap_or_else(|| panic!("{answer}")).to_owned()
    }

    /// Waits for these values: the kernel has them at once, and a server when it has noticed the end of a process.
    #[track_caller]
    pub fn until_values(&self, expected: &str) {
        let mut last = String::new();
        until(&format!("the values are {expected}"), || {
            last = self.values();
            last == expected
        });
    }

    /// How many sets the server has, for its programs alone; `None`: the kernel has the sets.
    pub fn sets_of_server(&self) -> Option<usize> {
        let Semaphores::Server(server) = &self.semaphores else { return None };
        let core = server.server.core();
        Some(core.list_sets(&mut core.sets()).len())
    }

    /// Whether the set does not exist.
    pub fn has_no_set(&self) -> bool {
        self.observe(&format!("get {} 0 0", self.key)) == "! ENOENT"
    }

    pub fn transcript(&self) -> Vec<String> {
        self.transcript.borrow().clone()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if !std::thread::panicking() || !self.is_of_server() {
            let answer = self.observe(&format!("get {} 0 0", self.key));
            if let Some(set) = answer.strip_prefix("= ") {
                self.observe(&format!("ctl {set} 0 IPC_RMID"));
            }
        }
    }
}

impl Console {
    pub fn pid(&self) -> u32 {
        self.program.pid()
    }

    /// Sends an expression, whose value [`Self::answers`] later.
    pub fn tell(&mut self, expression: &str) {
        self.transcript.borrow_mut().push(format!("{}: {expression}", self.name));
        self.program.tell(expression);
    }

    /// Reads the value of the expression that was sent, which must be this.
    #[track_caller]
    pub fn answers(&self, expected: &str) {
        assert_eq!(self.answer(), expected, "{}", self.name);
    }

    #[track_caller]
    pub fn answer(&self) -> String {
        let line = self.program.line();
        self.transcript.borrow_mut().push(format!("{}= {line}", self.name));
        line
    }

    pub fn is_silent(&self) -> bool {
        self.program.is_silent()
    }

    /// Evaluates an expression, which has this value.
    #[track_caller]
    pub fn says(&mut self, expression: &str, expected: &str) {
        self.tell(expression);
        assert_eq!(self.answer(), expected, "{}: {expression}", self.name);
    }

    #[track_caller]
    pub fn kill(&mut self) {
        self.program.kill();
    }

    /// Waits until its process has ended by itself.
    #[track_caller]
    pub fn end(&mut self) {
        self.program.end();
    }
}

/// Runs a scene with the kernel's semaphores and with those of a server; the transcripts must be equal.
#[track_caller]
pub fn compare(serial: u8, scene: impl Fn(&World)) {
    let kernel = World::of_kernel(serial).map(|world| {
        scene(&world);
        world.transcript()
    });
    let world = World::of_server(serial);
    scene(&world);
    if let Some(kernel) = kernel {
        assert_eq!(world.transcript(), kernel);
    }
}

impl Semaphores {
    fn command(&self, program: &Path) -> Command {
        match self {
            Self::Kernel => Command::new(program),
            Self::Server(server) => preloaded(program, server.address),
            Self::Hosts(hosts) => hosts.command(program),
        }
    }

    /// Starts a program where it belongs.
    fn run<T: Send>(&self, program: &Path, start: impl FnOnce() -> T + Send) -> T {
        match self {
            Self::Hosts(hosts) => hosts.of(program).within(start),
            _ => start(),
        }
    }
}
