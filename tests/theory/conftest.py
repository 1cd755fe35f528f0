from hypothesis import settings

settings.register_profile("theory", deadline=None)
settings.load_profile("theory")
