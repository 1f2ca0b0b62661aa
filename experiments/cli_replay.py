import click


@click.command("replay")
def command():
    pass
