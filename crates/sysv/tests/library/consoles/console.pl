# Evaluates Perl expressions, one a line, and answers each with one line: its value, or the error that it died of.
use strict;
use warnings;
use IPC::Semaphore;
use IPC::SysV qw(:all);

$| = 1;
our %v;    # The variables of the expressions.

# Operations as semop expects them: triples of number, change and flags.
sub ops { return pack('s!*', @_) }

# What a call returned, or why it failed.
sub outcome { return defined $_[0] ? $_[0] : "failed: $!" }

print "ready\n";
while (my $line = <STDIN>) {
    my @values = eval $line;
    my $answer = $@ ? "died: $@" : join(' ', map { defined $_ ? $_ : 'undef' } @values);
    $answer =~ s/ at \(eval \d+\) line \d+, <STDIN> line \d+\.\n?//;
    $answer =~ s/\s+$//;
    print "$answer\n";
}
