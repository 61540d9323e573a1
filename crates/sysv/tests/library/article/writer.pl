# The writer of the article about PHP and System V semaphores, which shares a set of PHP's with readers: semaphore 0 is
# taken by all of its units to write, 1 counts the users, 2 guards the setup. It obeys one command a line. The argument is
# the key in hexadecimal.
use strict;
use warnings;
use IPC::SysV qw(IPC_CREAT IPC_NOWAIT SEM_UNDO GETVAL);

$| = 1;
my ($key, $units) = (hex($ARGV[0]), 32767);

sub list { return pack('s!*', @_) }

my $set = semget($key, 3, IPC_CREAT | 0666);
defined $set or die "semget: $!";

semop($set, list(2, 0, 0, 2, 1, SEM_UNDO)) or die "start: $!";
my $value = semctl($set, 0, GETVAL, 0);
print "value $value\n";
semop($set, list(0, $units, 0)) if $value == 0;
semop($set, list(0, -$units, SEM_UNDO)) or die "check: $!";
semop($set, list(1, 1, SEM_UNDO, 0, $units, SEM_UNDO, 2, -1, SEM_UNDO)) or die "done: $!";
print "ready\n";

my %commands = (
    lock   => sub { semop($set, list(0, -$units, SEM_UNDO)) ? 'locked' : "failed: $!" },
    unlock => sub { semop($set, list(0, $units, SEM_UNDO | IPC_NOWAIT)) ? 'unlocked' : "failed: $!" },
);
while (my $command = <STDIN>) {
    chomp $command;
    print $commands{$command}->(), "\n";
}
